"""The time to the first token, by value."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.fleet.worker_view import WorkerView
from controller.routing.route_query import RouteQuery
from controller.routing.ttft_prediction import (
    NOT_CACHED,
    CachedShare,
    TTFTPrediction,
    find_cached_share,
    predict_ttft,
)
from shared.messages.events import Tier
from shared.messages.model_status import ModelPerformance, ModelState, ModelStatus
from tests.controller.values import DEMO, view

SPEED = ModelPerformance(
    prefill_tokens_per_s=1000,
    step_ms=20,
    rows=4,
    bytes_per_token=5,
    answer_tokens=100,
    load_ms=8000,
)
PROMPT = RouteQuery([DEMO], text_bytes=5000)
"""A thousand tokens, and a second."""


def worker(
    speed: ModelPerformance = SPEED,
    state: ModelState = "warm",
    progress: float | None = None,
    **fields: Any,
) -> WorkerView:
    status = ModelStatus(id=DEMO, state=state, progress=progress, speed=speed)
    return view("mac", models=[status], **fields)


def foretold(
    one: WorkerView, query: RouteQuery = PROMPT, kept: CachedShare = NOT_CACHED
) -> TTFTPrediction:
    return predict_ttft(one, one.models[DEMO], query, kept)


def test_an_idle_worker_takes_as_long_as_the_prompt_and_a_step() -> None:
    assert foretold(worker()) == TTFTPrediction(0, 0, 0, 1000, 20, 1020)


def test_tokens_count_as_they_are_and_text_by_its_bytes() -> None:
    assert foretold(worker(), RouteQuery([DEMO], text_bytes=50, token_ids=90)).prefill_ms == 100


@pytest.mark.parametrize(
    ("state", "progress", "load_ms"),
    [("available", None, 8000), ("loading", None, 8000), ("loading", 0.75, 2000), ("warm", 1, 0)],
)
def test_a_model_that_is_not_there_has_to_come_first(
    state: ModelState, progress: float | None, load_ms: float
) -> None:
    forecast = foretold(worker(state=state, progress=progress))
    assert (forecast.load_ms, forecast.total_ms) == (load_ms, load_ms + 1020)


@pytest.mark.parametrize(("load", "wait_ms"), [(0, 0), (3, 0), (4, 500), (5, 1000), (9, 3000)])
def test_who_finds_all_places_taken_waits_for_answers_to_end(load: int, wait_ms: float) -> None:
    one = worker(active_requests=min(4, load), queued_requests=max(0, load - 4))
    assert foretold(one).wait_ms == wait_ms
    sent = worker()
    for number in range(load):
        sent.offered(number, 0.0)
    assert foretold(sent).wait_ms == wait_ms


def test_one_request_with_many_answers_takes_as_many_places() -> None:
    sent = worker()
    sent.offered("many", 0.0, 9)
    for one in (worker(active_requests=1, choices=9), sent):
        assert foretold(one).wait_ms == 3000


def test_where_rows_are_not_measured_the_batch_size_counts() -> None:
    speed = SPEED.model_copy(update={"rows": 0})
    assert foretold(worker(speed, active_requests=2, max_batch_size=2)).wait_ms == 1000
    assert foretold(worker(speed, active_requests=9, max_batch_size=0)).wait_ms == 0


def test_prompts_that_were_there_before_are_computed_first() -> None:
    one = worker(prefill_ms=300.0)
    one.offered("r", 50.0)
    assert foretold(one).wait_ms == 350
    one.answered("r", accepted=True)
    one.prefilled("r")
    assert foretold(one).wait_ms == 300


def test_a_place_and_the_prompts_before_are_waited_for_at_once() -> None:
    assert foretold(worker(active_requests=4, prefill_ms=300.0)).wait_ms == 500
    assert foretold(worker(active_requests=4, prefill_ms=700.0)).wait_ms == 700


@pytest.mark.parametrize(("tier", "restore_ms"), [("memory", 1.5), ("disk", 22.5)])
def test_what_is_kept_is_restored_and_not_computed(tier: Tier, restore_ms: float) -> None:
    forecast = foretold(worker(), kept=CachedShare(0.75, tier))
    assert (forecast.restore_ms, forecast.prefill_ms) == pytest.approx((restore_ms, 250))
    assert forecast.total_ms == pytest.approx(270 + restore_ms)


def test_a_worker_that_has_not_measured_is_taken_for_a_middling_one() -> None:
    forecast = foretold(
        worker(ModelPerformance(), "available"), RouteQuery([DEMO], text_bytes=2000)
    )
    assert (forecast.prefill_ms, forecast.step_ms, forecast.load_ms) == (1000, 30, 10_000)
    full = foretold(worker(ModelPerformance(), active_requests=8))
    assert full.wait_ms == 100 * 30 / 8


speeds = st.builds(
    ModelPerformance,
    prefill_tokens_per_s=st.sampled_from([0.0, 1.0, 5000.0]),
    step_ms=st.sampled_from([0.0, 0.5, 400.0]),
    rows=st.integers(0, 8),
    bytes_per_token=st.sampled_from([0.0, 1.0, 6.0]),
    answer_tokens=st.sampled_from([0.0, 1.0, 4000.0]),
    load_ms=st.sampled_from([0.0, 90_000.0]),
)


@given(
    speeds,
    st.sampled_from(["warm", "loading", "available"]),
    st.one_of(st.none(), st.floats(0, 1)),
    st.integers(0, 20),
    st.integers(0, 10**7),
    st.builds(CachedShare, st.floats(0, 1), st.sampled_from(["memory", "disk"])),
)
def test_no_part_is_ever_less_than_nothing_and_all_are_in_the_whole(
    speed: ModelPerformance,
    state: ModelState,
    progress: float | None,
    load: int,
    text_bytes: int,
    kept: CachedShare,
) -> None:
    one = worker(speed, state, progress, active_requests=load)
    forecast = foretold(one, RouteQuery([DEMO], text_bytes=text_bytes), kept)
    parts = [forecast.load_ms, forecast.wait_ms, forecast.restore_ms, forecast.prefill_ms]
    assert min(*parts, forecast.step_ms) >= 0
    assert forecast.total_ms == pytest.approx(sum(parts) + forecast.step_ms)


# What is kept.


def test_the_last_link_that_is_held_tells_share_and_tier() -> None:
    links = [("a", 0.25), ("b", 0.5), ("c", 1.0)]
    assert find_cached_share(links, {"a": "memory", "b": "disk"}) == CachedShare(0.5, "disk")
    assert find_cached_share(links, {"a": "disk", "b": "disk", "c": "memory"}) == CachedShare(
        1.0, "memory"
    )
    assert find_cached_share(links, {"x": "memory"}) == find_cached_share(links, {}) == NOT_CACHED
    assert find_cached_share([], {"a": "memory"}) == NOT_CACHED


@given(
    st.lists(st.sampled_from(["memory", "disk"]), max_size=40),
    st.integers(0, 40),
    st.sets(st.text("xyz", min_size=1, max_size=2)),
)
def test_halving_finds_what_a_look_at_every_link_finds(
    tiers: list[Tier], held_links: int, others: set[str]
) -> None:
    links = [(str(number), (number + 1) / len(tiers)) for number in range(len(tiers))]
    held: dict[str, Tier] = dict.fromkeys(others, "memory")
    held |= {str(number): tier for number, tier in enumerate(tiers[:held_links])}
    found = NOT_CACHED
    for link, share in links:
        if link in held:
            found = CachedShare(share, held[link])
    assert find_cached_share(links, held) == found
