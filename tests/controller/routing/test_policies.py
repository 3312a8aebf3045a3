"""Each policy by value."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.routing.policies import Candidate, Policy, policy_named
from controller.routing.ttft_prediction import NOT_CACHED, TTFTPrediction
from shared.ids import ModelId
from shared.messages.model_status import ModelState
from shared.settings.controller import RoutingSettings
from tests.controller.values import models, view

NAMES = get_args(RoutingSettings.model_fields["policy"].annotation)


def candidate(
    name: str,
    *,
    total_ms: float = 100.0,
    load: float = 0.0,
    state: ModelState = "warm",
    model: str = "demo",
) -> Candidate:
    one = view(name, models=models(**{model: state}))
    forecast = TTFTPrediction(0, 0, 0, total_ms, 0, total_ms)
    return Candidate(one, one.models[ModelId(model)], NOT_CACHED, forecast, load)


def picks(
    policy: Policy, candidates: Sequence[Candidate], times: int = 1, seed: int = 1
) -> list[str]:
    draw = random.Random(seed).random
    return [policy.pick(candidates, draw).worker.id for _ in range(times)]


def one_of(policy: str, *candidates: Candidate) -> str:
    (picked,) = picks(policy_named(policy), candidates)
    return picked


def drawing(*numbers: float) -> Callable[[], float]:
    return iter(numbers).__next__


def test_the_names_are_those_of_the_settings() -> None:
    assert NAMES and [policy_named(name).name for name in NAMES] == list(NAMES)
    assert len({policy_named(name).reason for name in NAMES}) == len(NAMES)


# prefix-aware


def test_the_soonest_first_token_wins() -> None:
    busy = candidate("soon", total_ms=100, load=3.0)
    assert one_of("prefix-aware", candidate("late", total_ms=150), busy) == "soon"


@pytest.mark.parametrize(
    ("soonest_ms", "near_ms", "far_ms"), [(0, 25, 25.1), (10, 36, 36.1), (1000, 1125, 1126)]
)
def test_of_those_that_are_about_as_soon_the_least_busy_wins(
    soonest_ms: float, near_ms: float, far_ms: float
) -> None:
    soonest = candidate("soonest", total_ms=soonest_ms, load=0.5)
    far = candidate("far", total_ms=far_ms, load=0.0)
    assert one_of("prefix-aware", far, soonest) == "soonest"
    near = candidate("near", total_ms=near_ms, load=0.25)
    assert one_of("prefix-aware", far, near, soonest) == "near"


def test_equals_share_what_comes() -> None:
    equals = [candidate(name) for name in "abc"]
    counts = Counter(picks(policy_named("prefix-aware"), equals, times=300))
    assert min(counts.values()) > 60 and len(counts) == 3


def test_a_warm_model_wins_unless_loading_it_elsewhere_is_sooner() -> None:
    loading = candidate("loading", total_ms=5000, state="available")
    assert one_of("prefix-aware", loading, candidate("warm", total_ms=300, load=4.0)) == "warm"
    swamped = candidate("warm", total_ms=60_000, load=9.0)
    assert one_of("prefix-aware", loading, swamped) == "loading"


# The others.


@pytest.mark.parametrize("policy", ["least-busy", "round-robin", "power-of-two"])
def test_a_warm_model_wins_over_a_loading_one_and_that_over_one_to_load(policy: str) -> None:
    warm = candidate("c", load=5.0)
    loading = candidate("b", load=2.0, state="loading")
    available = candidate("a", state="available")
    assert one_of(policy, available, loading, warm) == "c"
    assert one_of(policy, available, loading) == "b"
    assert one_of(policy, available) == "a"


def test_the_least_busy_has_the_lowest_share_of_places_in_use() -> None:
    busy, idle = candidate("a", total_ms=1, load=0.5), candidate("b", total_ms=900, load=0.25)
    assert one_of("least-busy", busy, idle) == "b"


def test_round_robin_goes_on_where_it_was_when_workers_come_and_go() -> None:
    policy = policy_named("round-robin")
    fleet = {name: candidate(name) for name in "abcde"}

    def next_of(names: str) -> str:
        return picks(policy, [fleet[name] for name in names])[0]

    assert [next_of(names) for names in ("bd", "bd", "bd")] == ["b", "d", "b"]
    assert next_of("abcd") == "c"
    assert next_of("ab") == "a"  # all that followed are gone
    assert next_of("abe") == "b"
    assert next_of("ace") == "c"


def test_round_robin_has_a_turn_for_each_model() -> None:
    policy = policy_named("round-robin")
    demo = [candidate(name) for name in "ab"]
    best = [candidate(name, model="best") for name in "ab"]
    assert picks(policy, demo) == ["a"]
    assert picks(policy, best, times=2) == ["a", "b"]
    assert picks(policy, demo) == ["b"]
    assert picks(policy_named("round-robin"), demo) == ["a"]  # and each controller


def test_of_two_that_are_drawn_the_less_busy_one_is_taken() -> None:
    four = [candidate(name, load=load) for name, load in zip("abcd", (1, 2, 3, 0), strict=True)]
    policy = policy_named("power-of-two")
    assert policy.pick(four, drawing(0.3, 0.4, 0.9, 0.1)).worker.id == "b"  # of b and c
    assert policy.pick(four, drawing(0.99, 0.99, 0.5, 0.5)).worker.id == "d"  # of d and c
    assert policy.pick(four[:1], drawing(0.7, 0.5)).worker.id == "a"


def test_two_draws_never_find_the_same_worker_twice() -> None:
    two = [candidate("a", load=1.0), candidate("b")]
    assert set(picks(policy_named("power-of-two"), two, times=50)) == {"b"}


# Any of them.

candidates = st.lists(
    st.builds(
        lambda number, **fields: candidate(f"w{number}", **fields),
        st.integers(0, 99),
        total_ms=st.floats(0, 1e6),
        load=st.floats(0, 9),
        state=st.sampled_from(["warm", "loading", "available"]),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda one: one.worker.id,
).map(lambda drawn: sorted(drawn, key=lambda one: one.worker.id))


@given(st.sampled_from(NAMES), st.lists(candidates, min_size=1, max_size=4), st.data())
def test_one_of_those_that_can_is_picked_whatever_is_drawn(
    name: str, rounds: list[list[Candidate]], data: st.DataObject
) -> None:
    policy = policy_named(name)
    for able in rounds:
        picked = policy.pick(able, lambda: data.draw(st.floats(0, 1)))
        assert any(picked is one for one in able)


@given(candidates, st.integers(1, 4))
def test_round_robin_is_fair(able: list[Candidate], times: int) -> None:
    warmest = {one.status.state for one in able}
    state = next(state for state in ("warm", "loading", "available") if state in warmest)
    ready = [one for one in able if one.status.state == state]
    counts = Counter(picks(policy_named("round-robin"), able, times=times * len(ready)))
    assert counts == {one.worker.id: times for one in ready}
