"""Each role and each fact that it could forge, on a server that knows its users: who refuses it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import pytest

from shared import subjects
from shared.access.roles import ROLES, Role
from shared.bus import Bus
from shared.client import Cluster
from shared.codec import encode
from shared.ids import BootId, ClientName, ControllerId, WorkerId
from shared.messages.control import DrainWorker
from shared.messages.controller_report import ControllerReport
from shared.messages.dispatch import DispatchReply
from shared.messages.events import ControllerEvent, KeptPrefixes, WorkerEvent
from shared.messages.request_events import AttemptFailed, RequestEvents
from shared.settings.nats import NatsSettings
from tests.access.roles import as_role, refused
from tests.controller.pair import FIRST
from tests.controller.running import CONTROLLER, Running
from tests.controller.values import report
from tests.raw_nats import RawConnection

pytestmark = pytest.mark.anyio

SECURED = True

Verdict = Literal["server", "receiver", "heard", "may"]
"""What happens to a message of a role: the NATS server refuses it, or its receiver does and counts
it; it is heard, which changes nothing; or the role may send it, and it is believed."""

NAMES: dict[Role, str] = {
    "client": "local",
    "gateway": "gateway",
    "controller": "c-9",
    "worker": "worker-9",
    "admin": "local",
}
DOCS = Path(__file__).parents[2] / "docs" / "security.md"
_SHOWN: dict[Verdict, str] = {
    "server": "server", "receiver": "**receiver**", "heard": "moves nothing", "may": "may",
}  # fmt: skip
_W1, _BOOT, _GHOST = WorkerId("w1"), BootId("b1"), ControllerId("c-8")


def _left(worker: str) -> bytes:
    return encode(WorkerEvent(type="left", worker=report(worker)))


def _kept(_: str) -> bytes:
    return encode(KeptPrefixes(worker=_W1, boot_id=_BOOT, number=9, whole=True))


def _failed(_: str) -> bytes:
    failure = AttemptFailed.model_validate(
        {"request_id": "r", "client": "local", "attempt": 1, "code": "request_failed",
         "message": "it says so"}
    )  # fmt: skip
    return encode(RequestEvents(worker=_W1, boot_id=_BOOT, events=[failure]))


def _stopped(controller: str) -> bytes:
    told = ControllerReport(
        id=ControllerId(controller), boot_id=BootId("b9"), version="1", state="stopped", leader=True
    )
    return encode(ControllerEvent(type="left", controller=told))


def _later_term(name: str) -> bytes:
    body = json.loads(encode(WorkerEvent(type="heartbeat", worker=report(name))))
    body["worker"]["term"] = 2**30
    return json.dumps(body).encode()


def _accepted(_: str) -> bytes:
    return encode(DispatchReply(worker=_W1, boot_id=_BOOT, results=[]))


@dataclass(frozen=True)
class Fact:
    """
    Attributes:
        subject, body: of the message, by the name of who forges it.
        verdicts: in the order of `ROLES`.
    """

    what: str
    subject: Callable[[str], str]
    body: Callable[[str], bytes]
    verdicts: tuple[Verdict, Verdict, Verdict, Verdict, Verdict]


def _to(subject: str) -> Callable[[str], str]:
    return lambda _: subject


FACTS = (
    Fact("a worker left, on the subject of that worker",
         _to(subjects.worker_event(_W1)), lambda _: _left("w1"),
         ("server", "server", "server", "server", "may")),
    Fact("a worker left, on the own subject",
         lambda name: subjects.worker_event(WorkerId(name)), lambda _: _left("w1"),
         ("server", "server", "server", "receiver", "receiver")),
    Fact("what a worker has cached, on its subject",
         _to(subjects.prefix_event(_W1)), _kept, ("server", "server", "server", "server", "may")),
    Fact("what a worker has cached, on the own subject",
         lambda name: subjects.prefix_event(WorkerId(name)), _kept,
         ("server", "server", "server", "receiver", "receiver")),
    Fact("a request failed at a worker, on its subject",
         _to(subjects.request_event(CONTROLLER, _W1)), _failed,
         ("server", "server", "server", "server", "may")),
    Fact("a request failed at a worker, on the own subject",
         lambda name: subjects.request_event(CONTROLLER, WorkerId(name)), _failed,
         ("server", "server", "server", "receiver", "receiver")),
    Fact("a controller stopped, on the subject of that controller",
         _to(subjects.controller_event(FIRST)), lambda _: _stopped(FIRST),
         ("server", "server", "server", "server", "may")),
    Fact("a controller stopped, on the own subject",
         lambda name: subjects.controller_event(ControllerId(name)), lambda _: _stopped(_GHOST),
         ("server", "server", "receiver", "server", "receiver")),
    Fact("a later term, in a report of its own",
         lambda name: subjects.worker_event(WorkerId(name)), _later_term,
         ("server", "server", "server", "heard", "heard")),
    Fact("an answer to a dispatch, to an inbox of a controller",
         _to(f"{subjects.inbox_prefix('controller', CONTROLLER)}.x.1"), _accepted,
         ("server", "server", "may", "may", "server")),
    Fact("an order to a worker",
         _to(subjects.worker_control(_W1, "drain")), lambda _: encode(DrainWorker()),
         ("server", "server", "may", "server", "may")),
    Fact("a dispatch to a worker",
         _to(subjects.worker_infer(_W1)), lambda _: b"{}",
         ("server", "server", "may", "server", "may")),
    Fact("a text for another client",
         _to("_INBOX.ada.x"), lambda _: b"{}", ("server", "may", "may", "may", "server")),
    Fact("a request of another client",
         _to("mlx.infer.ada.chat"), lambda _: b"{}", ("server", "may", "server", "server", "may")),
)  # fmt: skip


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.what)
@pytest.mark.parametrize("role", ROLES)
async def test_a_fact_is_refused_by_whom_the_table_says(
    cluster: Running, bus: Bus, nats_settings: NatsSettings, role: Role, fact: Fact
) -> None:
    worker = await cluster.worker("w1")
    name, verdict = NAMES[role], fact.verdicts[ROLES.index(role)]
    term, counts = cluster.machine.term, cluster.controller._refused.counts
    async with RawConnection(as_role(role, name, nats_settings.servers[0])) as forger:
        forger.publish(fact.subject(name), fact.body(name))
        said = await forger.round_trip()
    denied = [line for line in said if b"Permissions Violation for Publish" in line]
    assert bool(denied) == (verdict == "server"), said
    refused()  # what the server logged of it is no mistake of the tests
    await bus.flush()
    if verdict == "receiver":
        await cluster.until(lambda: counts.total() == 1)
    elif verdict != "may":
        await cluster.settle()
        assert counts.total() == 0
    if verdict != "may":
        told = await Cluster(bus, ClientName("local")).health()
        assert "w1" in [each.id for each in told.workers]
        assert [each.id for each in told.controllers] == [cluster.controller.id]
        inbox = await cluster.ask(request_id="s")
        await worker.finish(await worker.next_dispatch())
        await inbox.done()
        assert cluster.machine.term == term


def test_the_table_of_the_docs_is_this_one() -> None:
    rows = [
        f"| {fact.what} | {' | '.join(_SHOWN[verdict] for verdict in fact.verdicts)} |"
        for fact in FACTS
    ]
    table = "\n".join([f"| who says | {' | '.join(ROLES)} |", f"|{'---|' * 6}", *rows])
    assert table in DOCS.read_text(), table
    assert set(get_args(Verdict)) == set(_SHOWN)
