"""Who is there, from what workers and controllers say; the clock is passed in."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.fleet.circuit_breaker import CircuitBreaker
from controller.fleet.registry import NodeRegistry, WorkerGone
from shared.ids import BootId, ControllerId, ModelId, WorkerId
from shared.messages.controller_report import ControllerReport
from shared.messages.events import ControllerEvent, EventType, WorkerEvent
from shared.messages.model_status import ModelStatus
from shared.settings.controller import CircuitBreakerSettings as Limits
from tests.controller.values import DEMO, able, models, report

MAC = WorkerId("mac")


def said(kind: EventType, worker: str = "mac", boot: str = "b1", **fields: Any) -> WorkerEvent:
    return WorkerEvent(type=kind, worker=report(worker, boot=boot, **fields))


def controller_said(kind: EventType, controller: str, *, term: int = 0) -> ControllerEvent:
    made = ControllerReport(
        id=ControllerId(controller), boot_id=BootId("b"), version="1.0.0", state="ready", term=term
    )
    return ControllerEvent(type=kind, controller=made)


@pytest.fixture
def registry() -> NodeRegistry:
    return NodeRegistry(silence_limit_s=3.0)


def worker_ids(registry: NodeRegistry) -> list[str]:
    return [view.id for view in registry.workers]


@pytest.mark.parametrize("kind", ["joined", "heartbeat", "state_changed"])
def test_any_event_but_leaving_makes_a_worker_known(
    registry: NodeRegistry, kind: EventType
) -> None:
    assert registry.on_worker_event(said(kind), now=0) is None
    assert worker_ids(registry) == ["mac"]


def test_workers_are_listed_by_id(registry: NodeRegistry) -> None:
    for name in ("c", "a", "b"):
        registry.on_worker_event(said("joined", name), now=0)
    assert worker_ids(registry) == ["a", "b", "c"]


def test_a_heartbeat_replaces_the_report_and_what_was_not_yet_reported(
    registry: NodeRegistry,
) -> None:
    registry.on_worker_event(said("joined"), now=0)
    before = registry.worker(MAC)
    assert before is not None
    before.unreported = 2
    assert before.load == 2
    registry.on_worker_event(said("heartbeat", active_requests=1, queued_requests=4), now=1)
    after = registry.worker(MAC)
    assert after is not None and (after.load, after.seen_at) == (5, 1)


def test_a_worker_that_leaves_is_gone_with_its_boot(registry: NodeRegistry) -> None:
    registry.on_worker_event(said("joined"), now=0)
    gone = registry.on_worker_event(said("left"), now=1)
    assert gone == WorkerGone(MAC, BootId("b1"), "it shut down")
    assert worker_ids(registry) == []


def test_a_worker_that_started_again_ends_its_old_boot(registry: NodeRegistry) -> None:
    registry.on_worker_event(said("joined"), now=0)
    gone = registry.on_worker_event(said("joined", boot="b2"), now=1)
    assert gone == WorkerGone(MAC, BootId("b1"), "it restarted")
    known = registry.worker(MAC)
    assert known is not None and known.report.boot_id == "b2"


@pytest.mark.parametrize("how", ["left", "started again", "absent", "silent"])
def test_who_is_gone_is_remembered_for_ten_seconds_as_it_was(
    registry: NodeRegistry, how: str
) -> None:
    registry.on_worker_event(said("joined", active_requests=3), now=0)
    assert registry.recently_gone(4) == []
    match how:
        case "left":
            registry.on_worker_event(said("left"), now=5)
        case "started again":
            registry.on_worker_event(said("joined", boot="b2"), now=5)
        case "absent":
            assert registry.remove(MAC, BootId("b1"), 5)
        case "silent":
            registry.remove_silent(2)
    (view,) = registry.recently_gone(14.9)
    assert (view.report.boot_id, view.load) == ("b1", 3)
    assert registry.recently_gone(15) == []


def test_only_a_worker_that_was_not_up_a_moment_ago_starts_for_the_first_time(
    registry: NodeRegistry,
) -> None:
    """For one that was, requests wait `waiting_room.max_wait_ms`, not a minute."""

    def was_up() -> bool:
        known = registry.worker(MAC)
        assert known is not None
        return known.was_up

    registry.on_worker_event(said("joined", state="starting"), now=0)
    assert not was_up()
    registry.on_worker_event(said("joined", boot="b2", state="starting"), now=1)
    assert not was_up(), "it failed to start and tries again"
    registry.on_worker_event(said("heartbeat", boot="b2"), now=2)
    registry.on_worker_event(said("joined", boot="b3", state="starting"), now=3)
    assert was_up()
    registry.on_worker_event(said("left", boot="b3"), now=4)
    registry.on_worker_event(said("joined", boot="b4", state="starting"), now=20)
    assert not was_up()


def test_the_leaving_of_an_old_boot_does_not_remove_the_new_one(registry: NodeRegistry) -> None:
    registry.on_worker_event(said("joined", boot="b2"), now=0)
    assert registry.on_worker_event(said("left", boot="b1"), now=1) is None
    assert worker_ids(registry) == ["mac"]


def test_the_leaving_of_an_unknown_worker_is_nothing(registry: NodeRegistry) -> None:
    assert registry.on_worker_event(said("left"), now=0) is None


def test_who_is_silent_for_too_long_is_dropped_once_and_no_sooner(registry: NodeRegistry) -> None:
    registry.on_worker_event(said("joined", "a"), now=0)
    registry.on_worker_event(said("joined", "b"), now=2)
    assert registry.remove_silent(0) == []
    gone = list(registry.remove_silent(0.1))
    assert gone == [WorkerGone(WorkerId("a"), BootId("b1"), "no report for 3 s")]
    assert worker_ids(registry) == ["b"]
    assert registry.remove_silent(2) == []


def test_controllers_come_go_and_fall_silent(registry: NodeRegistry) -> None:
    for name in ("c2", "c1", "c3"):
        registry.on_controller_event(controller_said("heartbeat", name), now=0)
    assert [one.id for one in registry.controllers] == ["c1", "c2", "c3"]
    registry.on_controller_event(controller_said("left", "c2"), now=1)
    registry.on_controller_event(controller_said("left", "c9"), now=1)
    registry.on_controller_event(controller_said("heartbeat", "c3"), now=2)
    assert registry.remove_silent(1) == []
    assert [one.id for one in registry.controllers] == ["c3"]


def test_a_worker_is_here_in_one_boot(registry: NodeRegistry) -> None:
    registry.on_worker_event(said("joined"), now=0)
    assert registry.is_alive(MAC, BootId("b1"))
    assert not registry.is_alive(MAC, BootId("b2")) and not registry.is_alive(MAC, None)
    assert not registry.is_alive(WorkerId("other"), BootId("b1"))


# Terms.


def test_each_boot_of_a_worker_is_to_be_claimed_anew(registry: NodeRegistry) -> None:
    """The leader says so when it was: nothing goes to a worker before."""
    registry.on_worker_event(said("joined"), now=0)
    (view,) = registry.workers
    assert not view.claimed
    view.claimed = True
    registry.on_worker_event(said("heartbeat"), now=1)
    assert view.claimed
    registry.on_worker_event(said("joined", boot="b2"), now=2)
    assert not registry.workers[0].claimed


def test_the_terms_for_which_workers_refuse_the_leader_are_known(registry: NodeRegistry) -> None:
    for name in ("a", "b"):
        registry.on_worker_event(said("joined", name), now=0)
    assert registry.refused_terms == []
    registry.workers[0].refused_term = 7
    assert registry.refused_terms == [7]
    registry.on_worker_event(said("joined", "a", boot="b2"), now=1)
    assert registry.refused_terms == []


# Who has which model.

BEST = ModelId("best")


def has(registry: NodeRegistry, worker: str, *, boot: str = "b1", **fields: Any) -> None:
    event = WorkerEvent(type="heartbeat", worker=report(worker, boot=boot, **fields))
    registry.on_worker_event(event, now=0)


def test_a_report_in_which_nothing_moved_makes_no_new_lists(registry: NodeRegistry) -> None:
    has(registry, "a")
    holding, warm = registry.workers_with(DEMO), registry.warm_workers_with(DEMO)
    has(registry, "a", active_requests=5)
    assert registry.workers_with(DEMO) is holding and registry.warm_workers_with(DEMO) is warm
    assert holding[0].load == 5


_SAID = st.tuples(
    st.sampled_from(["joined", "heartbeat", "heartbeat", "heartbeat", "left"]),
    st.sampled_from("abc"),
    st.sampled_from(["b1", "b2"]),
    st.sampled_from(["starting", "warming", "ready", "draining", "stopped", "unhealthy"]),
    st.dictionaries(st.sampled_from(["demo", "best"]), st.sampled_from(["warm", "available"])),
)


@given(st.lists(_SAID, max_size=25))
def test_the_lists_are_what_a_look_at_every_worker_finds(words: list[Any]) -> None:
    registry = NodeRegistry(silence_limit_s=3.0)
    for now, (kind, worker, boot, state, states) in enumerate(words):
        held = report(worker, boot=boot, state=state, models=models(**states))
        registry.on_worker_event(WorkerEvent(type=kind, worker=held), now=now)
        if now % 5 == 4:
            list(registry.remove_silent(now - 3))
        for model in (DEMO, BEST):
            holding = [view for view in registry.workers if model in view.models]
            warm = [
                view
                for view in holding
                if view.models[model].state == "warm" and view.report.state in ("ready", "warming")
            ]
            assert registry.workers_with(model) == holding
            assert registry.warm_workers_with(model) == warm


# Breakers.


def test_a_model_that_thinks_is_known_after_its_worker_is_gone(registry: NodeRegistry) -> None:
    not_loaded = [ModelStatus(id=DEMO, state="available", abilities=["reasoning"])]  # it may
    for found in (models(demo="warm"), able("tools"), not_loaded):
        has(registry, "mac", models=found)
        assert not registry.has_reasoning([DEMO])
    has(registry, "mac", models=able("reasoning"))
    registry.on_worker_event(said("left"), now=1)
    assert registry.has_reasoning([ModelId("other"), DEMO])
    assert not registry.has_reasoning([ModelId("other")])


def breaker_of(registry: NodeRegistry, worker: str) -> CircuitBreaker:
    view = registry.worker(WorkerId(worker))
    assert view is not None and view.breaker is not None
    return view.breaker


def test_a_breaker_outlives_the_boots_of_its_worker() -> None:
    registry = NodeRegistry(silence_limit_s=3.0, breakers=Limits(failure_threshold=1))
    has(registry, "a")
    has(registry, "b")
    breaker = breaker_of(registry, "a")
    breaker.failed(breaker.begin(0), 0)
    for event in (said("joined", "a", "b2"), said("left", "a", "b2"), said("joined", "a", "b3")):
        registry.on_worker_event(event, now=1)
    assert breaker_of(registry, "a") is breaker and not breaker.admits(1)
    assert breaker_of(registry, "b") is not breaker and breaker_of(registry, "b").admits(1)


@pytest.mark.parametrize(
    ("how", "closed"), [("silent", True), ("hung", True), ("started again", True), ("well", False)]
)
def test_what_failed_since_a_worker_was_heard_last_counts_once(how: str, closed: bool) -> None:
    registry = NodeRegistry(silence_limit_s=3.0, breakers=Limits(failure_threshold=3))
    has(registry, "a")
    breaker = breaker_of(registry, "a")
    for now in (0.5, 0.8, 1.1):
        breaker.failed(breaker.begin(now), now)
    assert not breaker.admits(1.2)
    match how:
        case "silent":
            registry.remove_silent(0.5)
            has(registry, "a")
        case "hung":
            registry.on_worker_event(said("heartbeat", "a"), now=1.6)
        case "started again":
            registry.on_worker_event(said("joined", "a", "b2"), now=1.2)
        case _:
            registry.on_worker_event(said("heartbeat", "a"), now=1.2)
    assert breaker_of(registry, "a").admits(4) is closed


@pytest.mark.parametrize("limits", [None, Limits(enabled=False)])
def test_without_breakers_no_worker_has_one(limits: Limits | None) -> None:
    registry = NodeRegistry(silence_limit_s=3.0, breakers=limits)
    has(registry, "a")
    assert registry.workers[0].breaker is None


def test_of_too_many_breakers_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.fleet.registry._MAX_BREAKERS", 2)
    registry = NodeRegistry(silence_limit_s=3.0, breakers=Limits())
    for worker in "abc":
        has(registry, worker)
    before = [breaker_of(registry, worker) for worker in "abc"]
    for worker in "bca":
        has(registry, worker, boot="b2")
    after = [breaker_of(registry, worker) for worker in "abc"]
    assert [one is other for one, other in zip(before, after, strict=True)] == [False, True, True]
