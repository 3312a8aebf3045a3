"""Events between our own processes survive the wire."""

import pytest

from shared.errors import DecodeError
from shared.ids import BootId, ClientName, ControllerId, ModelId, RequestId, WorkerId
from shared.messages.codec import decode, encode
from shared.messages.control import CONTROL_ORDERS
from shared.messages.events import (
    ControllerEvent,
    ControllerReport,
    EngineStatus,
    Hardware,
    ModelStatus,
    RequestEvents,
    RequestFailed,
    RequestFinished,
    TokensEmitted,
    WorkerEvent,
    WorkerReport,
)

WORKER = WorkerReport(
    id=WorkerId("mac-1"),
    boot_id=BootId("b1"),
    version="0.1.0",
    state="warming",
    models=[ModelStatus(id=ModelId("demo"), state="loading", progress=0.5)],
    engines=[EngineStatus(index=0, pid=7, state="running")],
    hardware=Hardware(chip="M4", accelerator="metal", memory_bytes=64),
    labels={"room": "2"},
)
ORIGIN = {"request_id": RequestId("r"), "client": ClientName("ada"), "attempt": 1}


def test_a_worker_event_survives_the_wire() -> None:
    event = WorkerEvent(type="heartbeat", worker=WORKER)
    assert decode(WorkerEvent, encode(event)) == event


def test_a_controller_event_survives_the_wire() -> None:
    report = ControllerReport(
        id=ControllerId("c"), boot_id=BootId("b"), version="1.0.0", state="ready"
    )
    event = ControllerEvent(type="left", controller=report)
    assert decode(ControllerEvent, encode(event)) == event


def test_the_events_of_a_step_come_back_as_what_they_were() -> None:
    batch = RequestEvents(
        worker=WorkerId("mac-1"),
        boot_id=BootId("b1"),
        events=[
            TokensEmitted(**ORIGIN, choice=0, index=3, token_ids=[1, 2], text_sent=5),
            RequestFinished(**ORIGIN),
            RequestFailed(**ORIGIN, code="engine_crashed", message="it ended"),
        ],
    )
    assert decode(RequestEvents, encode(batch)) == batch


def test_an_event_of_an_unknown_type_is_refused_with_its_place() -> None:
    payload = b'{"worker":"w","boot_id":"b","events":[{"type":"vanished"}]}'
    with pytest.raises(DecodeError) as caught:
        decode(RequestEvents, payload)
    assert caught.value.param == "events.0"


def test_each_control_verb_names_the_order_that_carries_it() -> None:
    verbs = {verb: kind.model_fields["verb"].default for verb, kind in CONTROL_ORDERS.items()}
    assert verbs == {
        verb: verb
        for verb in (
            "cancel",
            "attach",
            "load",
            "unload",
            "models",
            "drain",
            "config",
            "requests",
            "adopt",
            "sessions",
            "session",
            "forget",
            "pin",
            "kept",
        )
    }
