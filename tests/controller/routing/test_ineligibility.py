"""What keeps workers from serving a request, and what a client is told of it."""

from collections.abc import Sequence
from typing import Any

import pytest

from controller.fleet.circuit_breaker import CircuitBreaker
from controller.fleet.placement import RequestPlacement
from controller.fleet.worker_view import WorkerView
from controller.routing import (
    Ineligibility,
    NoRoute,
    RouteQuery,
    find_ineligibility,
    policy_named,
    select_worker,
)
from shared.errors import ERROR_CODES
from shared.ids import ClientName, ModelId, WorkerId
from shared.messages.base import PRIORITIES, Priority
from shared.messages.model_status import ModelStatus
from shared.messages.request import Requirements
from shared.messages.worker_report import Hardware, MemoryPressure, MemoryStatus, QueueStatus
from shared.settings.controller import CircuitBreakerSettings as Limits
from tests.controller.fleet.views import Kept, Views
from tests.controller.values import DEMO, models, view

BEST = ModelId("best")
ON_GPU = Requirements(labels={"gpu": "yes"})


def full(name: str, retry: int = 0, **fields: Any) -> WorkerView:
    """
    Args:
        retry: how many were told to come again.
    """
    one = view(name, queued_requests=10, **fields)
    one.queue_full_count = retry
    return one


def broken(name: str, *, since: float = 0.0, **fields: Any) -> WorkerView:
    """One that failed at that time, and is tried again ten seconds later."""
    breaker = CircuitBreaker(Limits(failure_threshold=1))
    breaker.failed(breaker.begin(since), since)
    return WorkerView(view(name, **fields).report, seen_at=0.0, breaker=breaker)


def unclaimed(name: str) -> WorkerView:
    one = view(name)
    one.claimed = False
    return one


def short_of_memory(name: str) -> WorkerView:
    return view(name, memory=MemoryStatus(pressure="hard", own_bytes=7_000_000_000))


def refused(
    *workers: WorkerView,
    query: RouteQuery | None = None,
    now: float = 4.0,
    gone: Sequence[WorkerView] = (),
) -> NoRoute:
    with pytest.raises(NoRoute) as caught:
        select_worker(
            query or RouteQuery([DEMO]), Views(workers, gone), Kept(), policy_named("prefix-aware"),
            now=now, rng=lambda: 0.5,
        )  # fmt: skip
    return caught.value


def obstacle_for(one: WorkerView, level: Priority) -> str | None:
    found = find_ineligibility(one, DEMO, RouteQuery([DEMO], level=level), 4.0)
    return found.code if found is not None else None


# One worker.

CAN = ["tools", "schema"]


def able_to(abilities: list[str] | None) -> list[ModelStatus]:
    return [ModelStatus(id=DEMO, state="warm", abilities=abilities)]


@pytest.mark.parametrize(
    ("abilities", "query", "code", "reason"),
    [
        (None, RouteQuery([DEMO]), None, ""),
        (None, RouteQuery([DEMO], structured=True), "no_worker", "a release without reasoning"),
        ([], RouteQuery([DEMO], structured=True), None, ""),
        (CAN, RouteQuery([DEMO], abilities=frozenset(CAN), structured=True), None, ""),
        (
            ["tools"],
            RouteQuery([DEMO], abilities=frozenset(CAN)),
            "not_supported",
            "no schema with demo",
        ),
        ([], RouteQuery([DEMO], abilities=frozenset(CAN)), "not_supported", "no schema and tools"),
    ],
)
def test_only_workers_that_can_answer_so_are_asked(
    abilities: list[str] | None, query: RouteQuery, code: str | None, reason: str
) -> None:
    one = view("a", models=able_to(abilities))
    ineligibility = find_ineligibility(one, DEMO, query)
    assert (ineligibility.code if ineligibility is not None else None) == code
    assert ineligibility is None or reason in ineligibility.reason


def test_one_that_could_answer_so_is_waited_for_and_none_is_told_at_once() -> None:
    query = RouteQuery([DEMO], abilities=frozenset({"schema"}), structured=True)
    able = full("able", models=able_to(["schema"]))
    old = view("old")
    unable = view("unable", models=able_to(["tools"]))
    waiting = refused(able, old, unable, query=query)
    assert (waiting.code, waiting.is_temporary) == ("queue_full", True)
    never = refused(old, unable, query=query)
    assert (never.code, never.is_temporary) == ("not_supported", False)
    assert not ERROR_CODES["not_supported"].retryable


OBSTACLES: list[tuple[dict[str, Any], Requirements | None, str | None, str]] = [
    ({}, None, None, ""),
    ({"state": "warming"}, None, None, ""),
    ({"state": "starting"}, None, "no_worker", "is starting"),
    ({"state": "stopped"}, None, "no_worker", "is stopped"),
    ({"state": "unhealthy"}, None, "no_worker", "is unhealthy"),
    ({"state": "draining"}, None, "draining", "is draining"),
    ({"models": []}, None, "no_worker", "does not have demo"),
    ({"models": models(demo="failed")}, None, "model_unavailable", "no space"),
    ({"queued_requests": 9}, None, None, ""),
    ({"queued_requests": 10}, None, "queue_full", "10 requests queued"),
    ({"queued_requests": 10, "max_queue_depth": 0}, None, None, ""),
    ({}, Requirements(min_memory_gb=64), None, ""),
    ({}, Requirements(min_memory_gb=64.5), "requirements_unmet", "64 GB of memory"),
    ({}, Requirements(chip="m4 max"), None, ""),
    ({}, Requirements(chip="M2"), "requirements_unmet", "'Apple M4 Max'"),
    ({}, Requirements(accelerator="metal"), None, ""),
    ({}, Requirements(accelerator="cuda"), "requirements_unmet", "'metal'"),
    ({}, Requirements(labels={"room": "2"}), None, ""),
    ({}, Requirements(labels={"room": "3"}), "requirements_unmet", "room=2"),
    ({}, Requirements(labels={"floor": "1"}), "requirements_unmet", "floor=None"),
    ({"models": []}, Requirements(chip="M2"), "no_worker", "does not have demo"),
]
MACHINE = {
    "hardware": Hardware(chip="Apple M4 Max", accelerator="metal", memory_bytes=64_000_000_000),
    "labels": {"room": "2"},
}


@pytest.mark.parametrize(("fields", "requires", "code", "reason"), OBSTACLES)
def test_what_keeps_a_worker_from_serving_has_a_code_and_a_reason(
    fields: dict[str, Any], requires: Requirements | None, code: str | None, reason: str
) -> None:
    ineligibility = find_ineligibility(
        view("a", **{**MACHINE, **fields}), DEMO, RouteQuery([DEMO], requires)
    )
    if code is None:
        assert ineligibility is None
    else:
        assert ineligibility is not None and ineligibility.code == code in ERROR_CODES
        assert reason in ineligibility.reason


# The code of all together.

FLEETS: list[tuple[list[WorkerView], str, int | None, bool]] = [
    ([broken("a")], "circuit_open", 6000, True),
    ([broken("a"), broken("b", since=-2.5)], "circuit_open", 3500, True),
    ([view("a", state="draining"), view("b", state="draining")], "draining", None, False),
    ([full("a"), full("b")], "queue_full", 1000, True),
    ([view("a", models=models(demo="failed"))], "model_unavailable", None, False),
    ([view("a", state="starting")], "no_worker", None, True),
    ([view("a", state="unhealthy")], "no_worker", None, False),
    # Who is far from serving it says nothing of those who could.
    ([full("a"), view("b", models=[])], "queue_full", 1000, True),
    ([broken("a"), view("b", state="unhealthy")], "circuit_open", 6000, True),
    ([view("a", models=[]), view("b", state="draining")], "draining", None, False),
    ([full("a"), view("b", models=models(demo="failed"))], "queue_full", 1000, True),
    ([full("a"), view("b", state="draining")], "queue_full", 1000, True),
    ([full("a"), unclaimed("b")], "queue_full", 1000, True),
    # Where several could, and cannot for different reasons, it is the one that passes first.
    ([full("a"), broken("b")], "queue_full", 1000, True),
    ([broken("a"), short_of_memory("b")], "memory_pressure", 2000, True),
]


@pytest.mark.parametrize(("workers", "code", "retry_after_ms", "passes"), FLEETS)
def test_the_client_is_told_what_keeps_those_that_could_serve_it(
    workers: list[WorkerView], code: str, retry_after_ms: int | None, passes: bool
) -> None:
    error = refused(*workers)
    assert (error.code, error.retry_after_ms, error.is_temporary) == (code, retry_after_ms, passes)
    assert error.retryable and set(error.ineligibilities) == {one.id for one in workers}


def test_without_any_worker_the_models_are_named() -> None:
    error = refused(query=RouteQuery([BEST, DEMO]))
    assert error.message == "no worker is available that could serve best or demo"
    assert (error.code, error.retryable) == ("no_worker", True)
    assert error.is_temporary and not error.is_starting, "the first worker may come in a moment"


def test_a_worker_that_starts_is_one_to_wait_for_longer_than_one_that_sleeps() -> None:
    starts = view("a", state="starting")
    assert refused(starts).is_starting
    asleep = view("b", state="ready")
    asleep.renew(view("b", state="starting").report, 1.0)
    error = refused(asleep)
    assert error.is_temporary and not error.is_starting


def test_a_worker_that_starts_without_the_model_is_not_waited_for() -> None:
    error = refused(view("a", state="starting", models=models(other="available")))
    assert (error.is_temporary, error.is_starting) == (False, False)
    assert error.message == "no worker can serve demo now: a does not have demo"


@pytest.mark.parametrize(
    ("requires", "starts"),
    [
        (Requirements(labels={"gpu": "yes"}), False),
        (Requirements(min_memory_gb=10_000), False),
        (Requirements(accelerator="metal"), True),  # its engine will tell
    ],
)
def test_a_worker_that_starts_is_waited_for_only_where_it_may_meet_what_is_required(
    requires: Requirements, starts: bool
) -> None:
    assert (
        refused(view("a", state="starting"), query=RouteQuery([DEMO], requires)).is_starting
        == starts
    )


def test_what_no_worker_has_is_said_to_be_required() -> None:
    query = RouteQuery([DEMO], ON_GPU)
    error = refused(view("a"), view("b", labels={"gpu": "no"}), query=query)
    assert (error.code, error.is_temporary) == ("requirements_unmet", False)
    assert "a has the label gpu=None; b has the label gpu=no" in error.message
    assert refused(view("a"), view("b", models=[]), query=query).code == "requirements_unmet"


def test_where_the_one_that_meets_the_requirements_is_full_it_is_that() -> None:
    error = refused(view("a"), full("b", labels={"gpu": "yes"}), query=RouteQuery([DEMO], ON_GPU))
    assert (error.code, error.retry_after_ms) == ("queue_full", 1000)


def test_of_a_skill_with_two_models_each_worker_is_out_for_one_reason() -> None:
    only_best, only_demo = full("a", models=models(best="warm")), broken("b")
    neither = view("c", models=models(other="warm"))
    error = refused(only_best, only_demo, neither, query=RouteQuery([BEST, DEMO]))
    assert {id: found.code for id, found in error.ineligibilities.items()} == {
        "a": "queue_full", "b": "circuit_open", "c": "no_worker",
    }  # fmt: skip
    assert "c does not have best" in error.message


def test_an_error_of_a_thousand_workers_stays_short() -> None:
    error = refused(*(full(f"w{number:04}") for number in range(1000)))
    assert len(error.ineligibilities) == 1000 and len(error.message) < 500
    assert "w0009 has 10 requests queued; and 990 others" in error.message
    assert "w0010" not in error.message


@pytest.mark.parametrize("code", ["queue_full", "memory_pressure", "circuit_open"])
def test_it_pays_to_wait_for_what_passes(code: str) -> None:
    assert code in ERROR_CODES
    ineligibilities = {
        WorkerId("a"): Ineligibility(code, ""),
        WorkerId("b"): Ineligibility("no_worker", ""),
    }
    assert NoRoute(RouteQuery([DEMO]), ineligibilities).is_temporary


# Who was here until a moment ago.


def test_who_may_be_back_soon_is_waited_for() -> None:
    error = refused(gone=[view("a")])
    assert (error.code, error.is_temporary) == ("no_worker", True)
    assert error.message == "no worker can serve demo now: a ended a moment ago"


@pytest.mark.parametrize(
    "gone",
    [
        view("a", models=models(other="warm"), labels=ON_GPU.labels),
        view("a", models=models(demo="failed"), labels=ON_GPU.labels),
        view("a"),
    ],
    ids=["another model", "a model that failed", "without what is required"],
)
def test_who_could_not_have_served_it_is_not_waited_for(gone: WorkerView) -> None:
    error = refused(query=RouteQuery([DEMO], ON_GPU), gone=[gone])
    assert (error.ineligibilities, error.is_temporary) == ({}, False)


def test_of_a_worker_that_was_started_again_its_present_state_is_told() -> None:
    error = refused(view("a", state="starting"), gone=[view("a")])
    assert error.message == "no worker can serve demo now: a is starting"
    assert error.is_temporary


# Several clients.


def test_a_client_that_has_many_requests_at_a_worker_leaves_the_last_slots_to_others() -> None:
    one = view("a", queued_requests=95, max_queue_depth=100)
    for _ in range(5):
        RequestPlacement(one, 0.0, 0.0, client=ClientName("eve")).accepted()
    one.renew(one.report, 1.0)
    codes = [
        (found := find_ineligibility(one, DEMO, RouteQuery([DEMO], client=ClientName(name)), 4.0))
        and found.code
        for name in ("eve", "ada")
    ]
    assert codes == ["queue_full", None]


# A breaker.


def test_an_open_breaker_keeps_requests_away_until_its_time() -> None:
    one = broken("a")
    codes = [
        (found := find_ineligibility(one, DEMO, RouteQuery([DEMO]), now)) and found.code
        for now in (9.9, 10)
    ]
    assert codes == ["circuit_open", None]


def test_a_half_open_one_with_its_trials_out_does_not_say_when() -> None:
    one = broken("a")
    assert one.breaker is not None and one.breaker.admits(10)
    one.breaker.begin(10)
    found = find_ineligibility(one, DEMO, RouteQuery([DEMO]), 10)
    assert found == Ineligibility("circuit_open", "failed several times recently", 1000)


def test_looking_for_obstacles_takes_no_trial() -> None:
    one = broken("a")
    for _ in range(5):
        assert find_ineligibility(one, DEMO, RouteQuery([DEMO]), 11) is None


# Room.


def test_the_room_that_a_worker_tells_is_by_priority() -> None:
    room: dict[Priority, int] = {"high": 2, "medium": 1, "low": 0}
    one = view("a", queued_requests=3, queue=QueueStatus(room=room))
    assert [obstacle_for(one, level) for level in PRIORITIES] == [None, None, "queue_full"]
    one.offered("r", 0.0)
    assert [obstacle_for(one, level) for level in PRIORITIES] == [None, "queue_full", "queue_full"]


def test_what_is_sent_takes_free_places_first_and_room_in_the_queue_then() -> None:
    one = view("a", active_requests=6, max_batch_size=8, max_queue_depth=2)
    for number in range(4):
        assert obstacle_for(one, "medium") is None
        one.offered(number, 0.0)
    assert obstacle_for(one, "medium") == "queue_full"
    one.answered(0, accepted=False)
    assert obstacle_for(one, "medium") is None


def test_a_request_with_many_answers_leaves_less_places_free() -> None:
    told = view("a", active_requests=1, choices=8, max_batch_size=8, max_queue_depth=1)
    sent = view("a", max_batch_size=8, max_queue_depth=1)
    sent.offered("many", 0.0, 8)
    for one in (told, sent):
        assert obstacle_for(one, "medium") is None
        one.offered("next", 0.0)
        assert obstacle_for(one, "medium") == "queue_full"


@pytest.mark.parametrize(
    ("drain_per_s", "queue_full_count", "retry_after_ms"),
    [(0.0, 0, 1000), (4.0, 0, 250), (4.0, 7, 2000), (0.001, 0, 60_000)],
)
def test_each_that_is_rejected_is_told_another_time(
    drain_per_s: float, queue_full_count: int, retry_after_ms: int
) -> None:
    one = full("a", queue_full_count, queue=QueueStatus(drain_per_s=drain_per_s))
    found = find_ineligibility(one, DEMO, RouteQuery([DEMO]))
    assert found is not None and found.retry_after_ms == retry_after_ms


# Memory.


@pytest.mark.parametrize(
    ("pressure", "codes"),
    [
        ("none", [None, None, None]),
        ("soft", [None, None, "memory_pressure"]),
        ("hard", ["memory_pressure"] * 3),
    ],
)
def test_short_memory_keeps_low_ones_away_first(
    pressure: MemoryPressure, codes: list[str | None]
) -> None:
    one = view("a", memory=MemoryStatus(pressure=pressure, own_bytes=7_000_000_000))
    assert [obstacle_for(one, level) for level in PRIORITIES] == codes
    if pressure == "hard":
        error = refused(one)
        assert (error.code, error.retry_after_ms) == ("memory_pressure", 2000)
        assert "7.00 GB" in error.message
