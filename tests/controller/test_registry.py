"""Who is there, from what workers and controllers say; the clock is passed in."""

import pytest

from controller.registry import Registry, WorkerGone
from shared.ids import BootId, ControllerId, WorkerId
from shared.messages.events import ControllerEvent, ControllerReport, EventType, WorkerEvent
from tests.controller.values import report

MAC = WorkerId("mac")


def said(kind: EventType, worker: str = "mac", boot: str = "b1", **fields: int) -> WorkerEvent:
    return WorkerEvent(type=kind, worker=report(worker, boot=boot, **fields))


def controller_said(kind: EventType, controller: str) -> ControllerEvent:
    made = ControllerReport(
        id=ControllerId(controller), boot_id=BootId("b"), version="1.0.0", state="ready"
    )
    return ControllerEvent(type=kind, controller=made)


@pytest.fixture
def registry() -> Registry:
    return Registry(silence_limit_s=3.0)


def worker_ids(registry: Registry) -> list[str]:
    return [view.id for view in registry.workers]


@pytest.mark.parametrize("kind", ["joined", "heartbeat", "state_changed"])
def test_any_event_but_leaving_makes_a_worker_known(registry: Registry, kind: EventType) -> None:
    assert registry.on_worker_event(said(kind), now=0) is None
    assert worker_ids(registry) == ["mac"]


def test_workers_are_listed_by_id(registry: Registry) -> None:
    for name in ("c", "a", "b"):
        registry.on_worker_event(said("joined", name), now=0)
    assert worker_ids(registry) == ["a", "b", "c"]


def test_a_heartbeat_replaces_the_report_and_what_was_not_yet_reported(registry: Registry) -> None:
    registry.on_worker_event(said("joined"), now=0)
    before = registry.worker(MAC)
    assert before is not None
    before.unreported = 2
    assert before.load == 2
    registry.on_worker_event(said("heartbeat", active_requests=1, queued_requests=4), now=1)
    after = registry.worker(MAC)
    assert after is not None and (after.load, after.seen_at) == (5, 1)


def test_a_worker_that_leaves_is_gone_with_its_boot(registry: Registry) -> None:
    registry.on_worker_event(said("joined"), now=0)
    gone = registry.on_worker_event(said("left"), now=1)
    assert gone == WorkerGone(MAC, BootId("b1"), "it shut down")
    assert worker_ids(registry) == []


def test_a_worker_that_started_again_ends_its_old_boot(registry: Registry) -> None:
    registry.on_worker_event(said("joined"), now=0)
    gone = registry.on_worker_event(said("joined", boot="b2"), now=1)
    assert gone == WorkerGone(MAC, BootId("b1"), "it started again")
    known = registry.worker(MAC)
    assert known is not None and known.report.boot_id == "b2"


def test_the_leaving_of_an_old_boot_does_not_remove_the_new_one(registry: Registry) -> None:
    registry.on_worker_event(said("joined", boot="b2"), now=0)
    assert registry.on_worker_event(said("left", boot="b1"), now=1) is None
    assert worker_ids(registry) == ["mac"]


def test_the_leaving_of_an_unknown_worker_is_nothing(registry: Registry) -> None:
    assert registry.on_worker_event(said("left"), now=0) is None


def test_who_is_silent_for_too_long_is_dropped_once_and_no_sooner(registry: Registry) -> None:
    registry.on_worker_event(said("joined", "a"), now=0)
    registry.on_worker_event(said("joined", "b"), now=2)
    assert registry.forget_silent(3.0, trusted_since=0) == []
    gone = list(registry.forget_silent(3.1, trusted_since=0))
    assert gone == [WorkerGone(WorkerId("a"), BootId("b1"), "nothing was heard of it for 3 s")]
    assert worker_ids(registry) == ["b"]
    assert registry.forget_silent(3.2, trusted_since=0) == []


def test_controllers_come_go_and_fall_silent(registry: Registry) -> None:
    for name in ("c2", "c1", "c3"):
        registry.on_controller_event(controller_said("heartbeat", name), now=0)
    assert [one.id for one in registry.controllers] == ["c1", "c2", "c3"]
    registry.on_controller_event(controller_said("left", "c2"), now=1)
    registry.on_controller_event(controller_said("left", "c9"), now=1)
    registry.on_controller_event(controller_said("heartbeat", "c3"), now=2)
    assert registry.forget_silent(4, trusted_since=0) == []
    assert [one.id for one in registry.controllers] == ["c3"]


def test_silence_before_our_own_link_worked_means_nothing(registry: Registry) -> None:
    registry.on_worker_event(said("joined", "a"), now=0)
    assert list(registry.forget_silent(10, trusted_since=8)) == []
    assert [gone.worker for gone in registry.forget_silent(11.1, trusted_since=8)] == ["a"]
