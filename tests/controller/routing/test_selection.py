"""The choice of a worker among few and among many, decided with values."""

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.fleet.circuit_breaker import CircuitBreaker
from controller.fleet.worker_view import WorkerView
from controller.routing import (
    NoRoute,
    RouteDecision,
    RouteQuery,
    find_ineligibility,
    policy_named,
    select_worker,
)
from controller.routing.selection import (
    AFFINITY_REASON,
    LIST_REASON,
    MAX_COMPARED,
    SESSION_REASON,
    TRIAL_REASON,
)
from shared.ids import ModelId, WorkerId
from shared.messages.base import PRIORITIES
from shared.messages.events import Tier
from shared.messages.model_status import ModelPerformance, ModelState, ModelStatus
from shared.messages.request import Requirements
from shared.settings.controller import CircuitBreakerSettings as Limits
from tests.controller.fleet.views import Kept, Views
from tests.controller.routing.test_policies import NAMES
from tests.controller.values import DEMO, models, view

BEST = ModelId("best")
SEEDS = range(20)


def decided(
    workers: Sequence[WorkerView],
    query: RouteQuery,
    kept: Mapping[str, Mapping[str, Tier]] | None = None,
    *,
    seed: int = 1,
    excluded: Collection[str] = (),
    policy: str = "prefix-aware",
    on_trial: Collection[str] = (),
) -> RouteDecision:
    fleet = Views(workers)
    fleet.on_trial = frozenset(WorkerId(name) for name in on_trial)
    return select_worker(
        query,
        fleet,
        Kept(kept),
        policy_named(policy),
        now=0.0,
        rng=random.Random(seed).random,
        excluded={WorkerId(name) for name in excluded},
    )


def chosen(*workers: WorkerView, query: RouteQuery, **how: Any) -> tuple[str, str]:
    decision = decided(workers, query, **how)
    return decision.worker.id, decision.model


def prompt(*links: str, home: str | None = None, **fields: Any) -> RouteQuery:
    """Of 40 kB: twenty seconds for a worker that has not measured."""
    shared = [(link, (number + 1) / len(links)) for number, link in enumerate(links)]
    return RouteQuery(
        [DEMO],
        text_bytes=40_000,
        links=lambda model: shared,
        home=WorkerId(home) if home is not None else None,
        is_turn=home is not None,
        **fields,
    )


def many(count: int = 200, **special: dict[str, Any]) -> list[WorkerView]:
    """Workers `w000`, `w001`, ..., some with other fields."""
    names = [f"w{number:03}" for number in range(count)]
    return [view(name, **special.get(name, {})) for name in names]


# Models.


def test_of_a_skill_with_two_models_the_worker_decides_which() -> None:
    one, other = view("a", models=models(best="warm")), view("b")
    assert chosen(one, other, query=RouteQuery([BEST, DEMO])) == ("a", "best")
    assert chosen(one, other, query=RouteQuery([DEMO, BEST])) == ("b", "demo")
    assert chosen(one, other, query=RouteQuery([DEMO])) == ("b", "demo")
    away = view("a", models=models(best="warm"), state="draining")
    assert chosen(away, other, query=RouteQuery([BEST, DEMO])) == ("b", "demo")
    assert chosen(one, other, query=RouteQuery([BEST, DEMO]), excluded="a") == ("b", "demo")


def test_the_links_are_those_of_the_model() -> None:
    asked: list[str] = []

    def links(model: ModelId) -> list[tuple[str, float]]:
        asked.append(model)
        return [(f"{model} link", 1.0)]

    query = RouteQuery([BEST, DEMO], text_bytes=40_000, links=links)
    kept: dict[str, dict[str, Tier]] = {"a": {"best link": "memory"}, "b": {"demo link": "memory"}}
    decision = decided([view("a"), view("b")], query, kept)
    assert (decision.worker.id, decision.model, asked) == ("b", "demo", ["best", "demo"])
    assert decision.chosen.cached.share == 1.0


def test_a_decision_tells_what_was_compared_and_who_was_out() -> None:
    workers = [view("a"), view("b", active_requests=4), view("c", state="draining")]
    decision = decided(workers, RouteQuery([DEMO]))
    assert [one.worker.id for one in decision.candidates] == ["a", "b"]
    assert decision.chosen is decision.candidates[0]
    assert decision.reason == "the shortest predicted time to the first token"
    assert {id: found.code for id, found in decision.ineligibilities.items()} == {"c": "draining"}


def test_the_least_busy_one_has_the_least_to_do_for_its_places() -> None:
    def least_busy(*workers: WorkerView) -> str:
        return chosen(*workers, query=RouteQuery([DEMO]), policy="least-busy")[0]

    waiting, active, told = view("a", queued_requests=3), view("b", active_requests=2), view("c")
    told.unreported = 1
    assert least_busy(waiting, active, told) == "c"
    told.unreported = 4
    assert least_busy(waiting, active, told) == "b"
    small = view("small", active_requests=2, max_batch_size=2)
    large = view("large", active_requests=4, max_batch_size=32)
    assert least_busy(small, large) == "large"


# Workers on trial.

FOUR = [view("a", active_requests=4), view("b"), view("c"), view("d")]
"""The policy picks anyone but `a`."""


def shares(query: RouteQuery, **how: Any) -> dict[str, float]:
    """Of many requests, by worker."""
    found = [decided(FOUR, query, seed=seed, **how).worker.id for seed in range(1000)]
    return {name: found.count(WorkerId(name)) / len(found) for name in "abcd"}


@pytest.mark.parametrize("level", ["medium", "low"])
def test_who_is_on_trial_gets_its_share_also_where_others_are_better(level: Any) -> None:
    query = RouteQuery([DEMO], level=level)
    assert shares(query)["a"] == 0
    assert 0.2 < shares(query, on_trial="a")["a"] < 0.3
    two = shares(query, on_trial="ab")
    assert 0.2 < two["a"] < 0.3 and two["b"] > two["a"]
    reasons = {decided(FOUR, query, seed=seed, on_trial="a").reason for seed in SEEDS}
    assert TRIAL_REASON in reasons and len(reasons) == 2


def test_one_that_is_much_slower_is_not_tried() -> None:
    kept: dict[str, dict[str, Tier]] = {name: {"one": "memory"} for name in "bcd"}
    query = prompt("one")
    assert shares(query, kept=kept, on_trial="a")["a"] == 0
    assert shares(query, kept=kept, on_trial="ab")["b"] > 0.3


def test_what_is_urgent_goes_to_others_while_there_are_some() -> None:
    query = RouteQuery([DEMO], level="high")
    assert shares(query, on_trial="bcd") == {"a": 1, "b": 0, "c": 0, "d": 0}
    assert shares(query, on_trial="abcd")["a"] == 0, "as ever where all are on trial"
    assert decided(FOUR, query, on_trial="bcd", excluded="a").worker.id in "bcd"


def test_a_session_stays_at_its_home_whoever_is_on_trial() -> None:
    query = RouteQuery([DEMO], home=WorkerId("b"), is_turn=True)
    assert shares(query, on_trial="c")["b"] == 1
    assert shares(query, on_trial="b")["b"] == 1


# What is kept, and sessions.


def test_a_worker_that_keeps_the_prompt_is_chosen_though_it_is_busier() -> None:
    kept: dict[str, dict[str, Tier]] = {"a": {"one": "memory", "two": "memory"}}
    busy, idle = view("a", active_requests=7), view("b")
    assert chosen(busy, idle, query=prompt("one", "two"), kept=kept)[0] == "a"
    swamped = view("a", active_requests=8, queued_requests=9, prefill_ms=60_000)
    assert chosen(swamped, idle, query=prompt("one", "two"), kept=kept)[0] == "b"


@pytest.mark.parametrize("policy", NAMES)
def test_a_session_stays_where_it_was_whatever_the_policy(policy: str) -> None:
    query = RouteQuery([DEMO], home=WorkerId("b"), is_turn=True)
    decision = decided([view("a"), view("b", active_requests=7)], query, policy=policy)
    assert (decision.worker.id, decision.reason) == ("b", SESSION_REASON)


@pytest.mark.parametrize(("ahead_ms", "at"), [(0, "b"), (260, "b"), (270, "a"), (9000, "a")])
def test_a_session_leaves_a_worker_that_is_much_slower(ahead_ms: float, at: str) -> None:
    """A step takes 30 ms at either, and 1.5 times that and 250 ms is much."""
    query = RouteQuery([DEMO], home=WorkerId("b"), is_turn=True)
    assert chosen(view("a"), view("b", prefill_ms=ahead_ms), query=query)[0] == at


@pytest.mark.parametrize(
    "fields",
    [
        {"state": "draining"},
        {"queued_requests": 10},
        {"models": []},
        {"models": models(other="warm")},
    ],
)
def test_a_session_leaves_a_worker_that_is_out(fields: dict[str, Any]) -> None:
    query = RouteQuery([DEMO], home=WorkerId("b"), is_turn=True)
    assert chosen(view("a"), view("b", **fields), query=query)[0] == "a"
    assert chosen(view("a"), query=query)[0] == "a"
    assert chosen(view("a"), view("b"), query=query, excluded="b")[0] == "a"


# Affinity.


@pytest.mark.parametrize("policy", NAMES)
def test_what_has_an_affinity_goes_where_that_was_whatever_the_policy(policy: str) -> None:
    query = RouteQuery([DEMO], home=WorkerId("b"))
    decision = decided([view("a"), view("b", active_requests=7)], query, policy=policy)
    assert (decision.worker.id, decision.reason) == ("b", AFFINITY_REASON)


@pytest.mark.parametrize(("ahead_ms", "at"), [(0, "b"), (27, "b"), (30, "a"), (9000, "a")])
def test_it_goes_elsewhere_where_it_is_served_sooner(ahead_ms: float, at: str) -> None:
    """A step takes 30 ms at either; a tenth of that and 25 ms are nothing."""
    query = RouteQuery([DEMO], home=WorkerId("b"))
    assert chosen(view("a"), view("b", prefill_ms=ahead_ms), query=query)[0] == at


@pytest.mark.parametrize(("ahead_ms", "at"), [(5_000, "b"), (19_000, "b"), (30_000, "a")])
def test_it_waits_there_as_long_as_computing_its_prompt_would_take(
    ahead_ms: float, at: str
) -> None:
    kept: dict[str, dict[str, Tier]] = {"b": {"one": "memory"}}
    query = prompt("one")._replace(home=WorkerId("b"))
    found = chosen(view("a"), view("b", prefill_ms=ahead_ms), query=query, kept=kept)
    assert found[0] == at


# Lists of prompts.


@pytest.mark.parametrize(("ahead_ms", "at"), [(0, "b"), (260, "b"), (270, "a"), (9000, "a")])
def test_a_prompt_of_a_list_goes_where_most_places_are_free_unless_it_is_much_slower_there(
    ahead_ms: float, at: str
) -> None:
    """A step takes 30 ms at either, and 1.5 times that and 250 ms is much."""
    soon, idle = view("a", active_requests=3), view("b", prefill_ms=ahead_ms)
    decision = decided([soon, idle], RouteQuery([DEMO], is_list_part=True))
    assert (decision.worker.id, decision.reason) == (at, LIST_REASON)


def test_prompts_of_a_list_go_to_who_keeps_their_long_beginning() -> None:
    kept: dict[str, dict[str, Tier]] = {"a": {"one": "memory"}}
    busy, idle = view("a", active_requests=7), view("b")
    assert chosen(busy, idle, query=prompt("one", is_list_part=True), kept=kept)[0] == "a"


@pytest.mark.parametrize("policy", [name for name in NAMES if name != "prefix-aware"])
def test_other_policies_spread_by_themselves(policy: str) -> None:
    two = [view("a", active_requests=1), view("b", prefill_ms=100)]
    decision = decided(two, RouteQuery([DEMO], is_list_part=True), policy=policy)
    assert decision.reason == policy_named(policy).reason


# Among many.


@pytest.mark.parametrize("seed", SEEDS)
def test_among_many_some_are_compared_and_a_good_one_is_found(seed: int) -> None:
    workers = [view(f"w{number:03}", active_requests=number % 8) for number in range(200)]
    decision = decided(workers, RouteQuery([DEMO]), seed=seed)
    assert 1 < len(decision.candidates) <= MAX_COMPARED
    assert decision.worker.load <= 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("keepers", [1, 3, 9, 40, 200])
def test_who_keeps_the_prompt_is_found_among_many(seed: int, keepers: int) -> None:
    names = [f"w{number * 199 // max(1, keepers - 1):03}" for number in range(keepers)]
    kept: dict[str, dict[str, Tier]] = {name: {"one": "memory", "two": "disk"} for name in names}
    assert chosen(*many(), query=prompt("one", "two"), kept=kept, seed=seed)[0] in names


@pytest.mark.parametrize("seed", SEEDS)
def test_who_keeps_most_of_it_is_found_among_those_that_keep_its_beginning(seed: int) -> None:
    links = [f"{number:02}" for number in range(30)]
    kept: dict[str, dict[str, Tier]] = {
        f"w{number:03}": dict.fromkeys(links[:10], "memory") for number in range(0, 200, 2)
    }
    kept["w077"] = dict.fromkeys(links, "memory")
    query = prompt(*links)
    assert chosen(*many(), query=query, kept=kept, seed=seed)[0] == "w077"
    workers = many(w077={"queued_requests": 10})
    second = decided(workers, query, kept, seed=seed)
    assert second.chosen.cached.share == pytest.approx(1 / 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_chain_of_one_worker_does_not_hide_those_that_keep_less(seed: int) -> None:
    links = [f"{number:02}" for number in range(30)]
    kept: dict[str, dict[str, Tier]] = {
        "w050": dict.fromkeys(links, "memory"),
        "w150": dict.fromkeys(links[:9], "memory"),
    }
    workers = many(w050={"state": "draining"})
    assert chosen(*workers, query=prompt(*links), kept=kept, seed=seed)[0] == "w150"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_session_finds_its_worker_among_many(seed: int) -> None:
    decision = decided(many(), prompt(home="w123"), seed=seed)
    assert (decision.worker.id, decision.reason) == ("w123", SESSION_REASON)


def test_keepers_that_are_gone_or_lost_the_model_are_passed_over() -> None:
    kept: dict[str, dict[str, Tier]] = {
        name: {"one": "memory"} for name in ("w007", "w008", "gone")
    }
    workers = many(w007={"models": []})
    assert chosen(*workers, query=prompt("one", home="gone"), kept=kept)[0] == "w008"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_one_of_many_that_can_serve_it_is_found(seed: int) -> None:
    workers = many(w150={"labels": {"room": "2"}})
    query = RouteQuery([DEMO], Requirements(labels={"room": "2"}))
    assert chosen(*workers, query=query, seed=seed)[0] == "w150"
    crowd = [view(f"w{number:03}", queued_requests=10 * (number != 60)) for number in range(200)]
    assert chosen(*crowd, query=RouteQuery([DEMO]), seed=seed)[0] == "w060"


@pytest.mark.parametrize("seed", SEEDS)
def test_among_many_warm_ones_are_compared_and_others_where_those_are_out(seed: int) -> None:
    cold = {"models": models(demo="available")}
    workers = [view(f"w{number:03}", **(cold if number % 9 else {})) for number in range(200)]
    assert decided(workers, RouteQuery([DEMO]), seed=seed).chosen.status.state == "warm"
    warm = [one.id for one in workers if one.models[DEMO].state == "warm"]
    assert decided(workers, RouteQuery([DEMO]), seed=seed, excluded=warm).worker.id not in warm


def test_the_best_model_is_served_even_by_one_of_many() -> None:
    workers = many(w150={"models": models(best="available", demo="warm")})
    assert chosen(*workers, query=RouteQuery([BEST, DEMO])) == ("w150", "best")


@pytest.mark.parametrize("is_list_part", [False, True])
def test_a_worker_that_tells_of_a_time_below_zero_does_not_stop_the_choice(
    is_list_part: bool,
) -> None:
    strange = ModelPerformance(prefill_tokens_per_s=-0.001, step_ms=-5, load_ms=-7)
    broken = {"models": [ModelStatus(id=DEMO, state="warm", speed=strange)]}
    query = RouteQuery([DEMO], text_bytes=4000, is_list_part=is_list_part)
    for workers in ([view("w1", **broken), view("w2")], [view("w1", **broken)]):
        assert decided(workers, query).worker.id in ("w1", "w2")
    assert decided([view("w1", **broken), view("w2", **broken)], query).candidates


# Any fleet.


def _broken(now: float) -> CircuitBreaker:
    breaker = CircuitBreaker(Limits(failure_threshold=1))
    breaker.failed(breaker.begin(now), now)
    return breaker


def _view(number: int, broke: float | None, sent: int, fields: dict[str, Any]) -> WorkerView:
    report = view(f"w{number:02}", **fields).report
    breaker = _broken(broke) if broke is not None else None
    return WorkerView(report, 0.0, unreported=sent, breaker=breaker)


_STATES: st.SearchStrategy[ModelState] = st.sampled_from(["warm", "loading", "available", "failed"])
fleets = st.lists(
    st.builds(
        _view,
        st.integers(0, 60),
        st.sampled_from([None, None, -20.0, -3.0]),
        st.integers(-1, 3),
        st.fixed_dictionaries(
            {
                "state": st.sampled_from(
                    ["starting", "warming", "ready", "ready", "draining", "unhealthy"]
                ),
                "active_requests": st.integers(0, 9),
                "queued_requests": st.integers(0, 12),
                "max_batch_size": st.integers(0, 8),
                "labels": st.sampled_from([{}, {"room": "2"}]),
                "models": st.dictionaries(st.sampled_from(["best", "demo"]), _STATES).map(
                    lambda states: models(**states)
                ),
            }
        ),
    ),
    max_size=25,
    unique_by=lambda one: one.id,
).map(lambda drawn: sorted(drawn, key=lambda one: one.id))
needs = st.builds(
    RouteQuery,
    st.sampled_from([[DEMO], [BEST], [BEST, DEMO], [DEMO, BEST]]),
    st.sampled_from([None, None, Requirements(labels={"room": "2"})]),
    st.sampled_from(PRIORITIES),
    st.integers(0, 10_000),
    st.integers(0, 10_000),
    is_list_part=st.booleans(),
    links=st.just(lambda model: ()),
    home=st.one_of(st.none(), st.integers(0, 60).map(lambda number: WorkerId(f"w{number:02}"))),
    is_turn=st.booleans(),
)


@given(
    fleets,
    needs,
    st.sampled_from(NAMES),
    st.integers(1, 30),
    st.sets(st.integers(0, 60).map(lambda number: WorkerId(f"w{number:02}")), max_size=8),
    st.randoms(use_true_random=False),
)
def test_who_is_chosen_can_serve_and_else_each_has_an_obstacle(
    workers: list[WorkerView],
    query: RouteQuery,
    policy: str,
    most: int,
    excluded: set[WorkerId],
    draws: random.Random,
) -> None:
    left = [one for one in workers if one.id not in excluded]
    able = {
        model: [one for one in left if find_ineligibility(one, model, query, 0.0) is None]
        for model in query.models
    }
    try:
        decision = select_worker(
            query, Views(workers), Kept(), policy_named(policy),
            now=0.0, rng=draws.random, excluded=excluded, max_compared=most,
        )  # fmt: skip
    except NoRoute as error:
        assert not any(able.values())
        assert set(error.ineligibilities) == {one.id for one in left}
        for one in left[:10]:
            assert f"{one.id} {error.ineligibilities[one.id].reason}" in error.message
        assert (f"and {len(left) - 10} others" in error.message) is (len(left) > 10)
        assert error.retryable
    else:
        assert decision.model == next(model for model in query.models if able[model])
        assert any(decision.worker is one for one in able[decision.model])
        assert any(decision.chosen is one for one in decision.candidates)
        assert all(one.worker in able[decision.model] for one in decision.candidates)
        assert not excluded & set(decision.ineligibilities)
