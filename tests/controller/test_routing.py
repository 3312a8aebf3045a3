"""The choice of a worker, decided with values."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.routing import Need, choose, find_obstacle, policy_named
from controller.worker_view import WorkerView
from shared.errors import ERROR_CODES, Unavailable
from shared.ids import ModelId, WorkerId
from shared.messages.events import Hardware, WorkerReport
from shared.messages.request import Requirements
from tests.controller.fleet import Kept, Views
from tests.controller.values import DEMO, models, view


def first_wins() -> Callable[[], float]:
    numbers = count()
    return lambda: float(next(numbers))


def chosen(
    *workers: WorkerView,
    need: Need | None = None,
    excluded: tuple[str, ...] = (),
    policy: str = "least-busy",
) -> tuple[str, str]:
    decision = choose(
        need or Need([DEMO]),
        Views(workers),
        Kept(),
        policy_named(policy),
        now=0.0,
        draw=first_wins(),
        excluded={WorkerId(name) for name in excluded},
    )
    return decision.worker.id, decision.model


def refused(*workers: WorkerView, need: Need | None = None) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        chosen(*workers, need=need)
    return caught.value


def test_the_least_busy_worker_is_chosen() -> None:
    assert chosen(view("a", active_requests=3), view("b", active_requests=1)) == ("b", "demo")


def test_queued_and_unreported_requests_count_as_load() -> None:
    busy, waiting, told = view("a", queued_requests=3), view("b", active_requests=2), view("c")
    told.unreported = 1
    assert chosen(busy, waiting, told)[0] == "c"
    told.unreported = 4
    assert chosen(busy, waiting, told)[0] == "b"


def test_load_is_measured_against_the_batch_slots() -> None:
    small = view("small", active_requests=2, max_batch_size=2)
    large = view("large", active_requests=4, max_batch_size=32)
    assert chosen(small, large)[0] == "large"


def test_among_equals_the_lowest_draw_wins() -> None:
    workers = [view(name) for name in "abc"]
    draws = iter([0.7, 0.2, 0.5])
    decision = choose(
        Need([DEMO]), Views(workers), Kept(), policy_named("least-busy"),
        now=0.0, draw=lambda: next(draws),
    )  # fmt: skip
    assert decision.worker.id == "b"


def test_a_warm_model_wins_over_one_to_load_even_when_busier() -> None:
    warm = view("warm", active_requests=7)
    loading = view("loading", models=models(demo="loading"))
    available = view("available", models=models(demo="available"))
    assert chosen(available, loading, warm)[0] == "warm"
    assert chosen(available, loading)[0] == "loading"
    assert chosen(available)[0] == "available"


def test_an_earlier_model_wins_over_a_later_one() -> None:
    need = Need([ModelId("best"), DEMO])
    only_demo = view("a")
    both = view("b", active_requests=5, models=models(best="available", demo="warm"))
    assert chosen(only_demo, both, need=need) == ("b", "best")
    assert chosen(only_demo, need=need) == ("a", "demo")


def test_an_excluded_worker_is_not_asked_again() -> None:
    assert chosen(view("a"), view("b", active_requests=5), excluded=("a",))[0] == "b"


def test_a_warming_worker_may_be_chosen() -> None:
    assert chosen(view("a", state="warming"))[0] == "a"


OBSTACLES: list[tuple[dict[str, Any], Requirements | None, str | None, str]] = [
    ({}, None, None, ""),
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
    obstacle = find_obstacle(view("a", **{**MACHINE, **fields}), DEMO, Need([DEMO], requires))
    if code is None:
        assert obstacle is None
    else:
        assert obstacle is not None and obstacle.code == code in ERROR_CODES
        assert reason in obstacle.reason


def test_without_any_worker_the_models_are_named() -> None:
    error = refused(need=Need([ModelId("best"), DEMO]))
    assert error.message == "no worker is there that could serve best or demo"
    assert (error.code, error.retryable) == ("no_worker", True)


def test_when_all_are_full_the_client_is_told_when_to_come_again() -> None:
    error = refused(view("a", queued_requests=10), view("b", queued_requests=11))
    assert (error.code, error.retry_after_ms) == ("queue_full", 1000)
    assert "a has 10 requests queued; b has 11 requests queued" in error.message


def test_different_obstacles_are_all_named_under_the_general_code() -> None:
    error = refused(view("a", state="draining"), view("b", queued_requests=10))
    assert (error.code, error.retry_after_ms) == ("no_worker", None)
    assert "a is draining; b has 10" in error.message


views = st.builds(
    lambda index, fields, unreported: WorkerView(
        view(f"w{index}", **fields).report, seen_at=0, unreported=unreported
    ),
    st.integers(0, 50),
    st.fixed_dictionaries(
        {
            "state": st.sampled_from(["starting", "warming", "ready", "draining", "unhealthy"]),
            "active_requests": st.integers(0, 20),
            "queued_requests": st.integers(0, 12),
            "max_batch_size": st.integers(0, 32),
            "models": st.sampled_from(
                [models(demo=state) for state in ("warm", "loading", "available", "failed")]
            ),
        }
    ),
    st.integers(0, 3),
)


@given(st.lists(views, max_size=6), st.data())
def test_whoever_is_chosen_can_serve_and_none_is_left_out_without_an_obstacle(
    workers: list[WorkerView], data: st.DataObject
) -> None:
    able = [one for one in workers if find_obstacle(one, DEMO, Need([DEMO])) is None]
    try:
        route = choose(
            Need([DEMO]), Views(workers), Kept(), policy_named("least-busy"),
            now=0.0, draw=lambda: data.draw(st.floats(0, 1)),
        )  # fmt: skip
    except Unavailable:
        assert able == []
    else:
        assert route.worker in able

        def cost(report: WorkerReport, load: int) -> float:
            return load / max(1, report.max_batch_size)

        states = {one.report.models[0].state for one in able}
        best = next(state for state in ("warm", "loading", "available") if state in states)
        assert route.worker.report.models[0].state == best
        same = [one for one in able if one.report.models[0].state == best]
        lowest = min(cost(one.report, one.load) for one in same)
        assert cost(route.worker.report, route.worker.load) == lowest
