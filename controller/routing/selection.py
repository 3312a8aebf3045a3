"""The choice of a worker: filter, score, pick."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from controller.fleet.worker_view import WorkerView
from controller.routing.ineligibility import (
    GONE,
    Ineligibilities,
    Ineligibility,
    NoRoute,
    find_ineligibility,
    is_capable,
)
from controller.routing.policies import (
    Candidate,
    LeastBusy,
    Policy,
    PrefixAware,
    RandomSource,
    near_ms,
)
from controller.routing.route_query import Links, RouteQuery
from controller.routing.ttft_prediction import NOTHING, find_cached_share, predict_ttft
from shared.ids import ModelId, WorkerId
from shared.messages.events import Tier

MOST_COMPARED = 8
"""So many workers are compared at most: where more hold a model, those that keep most of the
prompt, and others that are drawn: two that are drawn are nearly as good as all (Mitzenmacher)."""

_MOST_KEEPERS = 4
_MUCH_SLOWER = 1.5
_MUCH_SLOWER_MS = 250.0
"""A session leaves its worker, and a list of prompts leaves one out, where another one's forecast
is better by more than both."""

T = TypeVar("T")

HOME = "it served the session before"
AFFINITY = "it served what has the same affinity before"
ONLY = "no other one can serve it now"
TRIAL = "it has new settings, and gets its share of what is not urgent"
SPREAD = "the least of its places are taken, and prompts of a list are spread"


class Fleet(Protocol):
    """The workers there are."""

    def holding(self, model: ModelId) -> Sequence[WorkerView]:
        """Those that have a model, or can load it, in the order of their ids."""

    def warm(self, model: ModelId) -> Sequence[WorkerView]:
        """Those of them that have it warm."""

    def worker(self, worker: WorkerId) -> WorkerView | None: ...

    @property
    def workers(self) -> Sequence[WorkerView]: ...

    @property
    def on_trial(self) -> Collection[WorkerId]:
        """Those with settings that have not proved themselves: not for what matters most, where
        others can serve it, and for their share of all else."""

    def gone_lately(self, now: float) -> Sequence[WorkerView]:
        """Those that ended a moment ago, as they were last."""


class PrefixCaches(Protocol):
    """What workers keep of prompts."""

    def links(self, worker: WorkerId) -> Mapping[str, Tier]:
        """The links that a worker keeps."""

    def keepers(self, link: str) -> Collection[WorkerId]:
        """The workers that keep a link."""


class RouteDecision(NamedTuple):
    """
    Attributes:
        chosen: one of `candidates`.
        reason: why, for people.
        obstacles: why others were out that were looked at.
    """

    model: ModelId
    chosen: Candidate
    reason: str
    candidates: Sequence[Candidate]
    ineligibilities: Ineligibilities

    @property
    def worker(self) -> WorkerView:
        return self.chosen.worker


def select_worker(
    query: RouteQuery,
    fleet: Fleet,
    kept: PrefixCaches,
    policy: Policy,
    *,
    now: float,
    rng: RandomSource,
    excluded: Collection[WorkerId] = (),
    most: int = MOST_COMPARED,
) -> RouteDecision:
    """A worker that can serve `query`, with the best model it has for it.

    The first model that any worker can serve wins. A session stays where it was served, while
    that is not much slower, what has an affinity while it is as soon there; else the policy picks.

    Args:
        excluded: workers that refused this request already.

    Raises:
        NoRoute: no worker is left; says why for each.
    """
    ineligibilities: dict[WorkerId, Ineligibility] = {}
    on_trial = fleet.on_trial
    for model in query.models:
        links = query.links(model)
        holding = fleet.holding(model)
        pools = [holding]  # of many first some that are likely to be good
        if len(holding) > most:
            pools.insert(0, _sample(query, model, links, fleet, kept, rng, most))
        for views in pools:
            candidates = []
            for view in views:
                if view.id in excluded:
                    continue
                ineligibility = find_ineligibility(view, model, query, now)
                if ineligibility is None:
                    candidates.append(_candidate(view, model, query, links, kept))
                else:
                    ineligibilities.setdefault(view.id, ineligibility)
            if candidates:
                tried = _tried(candidates, query, on_trial, rng) if on_trial else None
                if tried is not None:
                    return RouteDecision(model, tried, TRIAL, candidates, ineligibilities)
                if query.level == "high" and on_trial:
                    proven = [one for one in candidates if one.worker.id not in on_trial]
                    candidates = proven or candidates
                chosen, reason = _pick(candidates, query, policy, rng)
                return RouteDecision(model, chosen, reason, candidates, ineligibilities)
    for view in fleet.workers:
        if view.id not in excluded and view.id not in ineligibilities:
            ineligibility = find_ineligibility(view, query.models[0], query, now)
            if ineligibility is not None:
                ineligibilities[view.id] = ineligibility
    gone = fleet.gone_lately(now)
    for view in gone:
        if is_capable(view, query):
            ineligibilities.setdefault(view.id, GONE)
    raise NoRoute(query, ineligibilities, nobody=not (fleet.workers or gone))


def _tried(
    candidates: Sequence[Candidate],
    query: RouteQuery,
    on_trial: Collection[WorkerId],
    rng: RandomSource,
) -> Candidate | None:
    """A worker on trial, where it is its turn: of what is not urgent each gets its share, also
    where the policy would never pick it, or nothing would show what it is like. Not where it is
    much slower, and no session that has a home."""
    if query.level == "high" or (query.is_turn and query.home is not None) or not on_trial:
        return None
    one = candidates[min(int(rng() * len(candidates)), len(candidates) - 1)]
    slow = one.forecast.total_ms > _much_slower_ms(candidates)
    return one if one.worker.id in on_trial and not slow and len(candidates) > 1 else None


def _pick(
    candidates: Sequence[Candidate], query: RouteQuery, policy: Policy, rng: RandomSource
) -> tuple[Candidate, str]:
    if query.home is not None:
        home = next((one for one in candidates if one.worker.id == query.home), None)
        limit_ms = _much_slower_ms(candidates) if query.is_turn else near_ms(candidates)
        if home is not None and home.forecast.total_ms <= limit_ms:
            return home, HOME if query.is_turn else AFFINITY
    if len(candidates) == 1:
        return candidates[0], ONLY
    if query.among_others and isinstance(policy, PrefixAware):
        limit = _much_slower_ms(candidates)
        near = [one for one in candidates if one.forecast.total_ms <= limit]
        return LeastBusy().pick(near, rng), SPREAD
    return policy.pick(candidates, rng), policy.reason


def _much_slower_ms(candidates: Sequence[Candidate]) -> float:
    """Forecasts above this are much longer than the shortest one."""
    soonest = min(candidate.forecast.total_ms for candidate in candidates)
    return max(soonest, _MUCH_SLOWER * soonest + _MUCH_SLOWER_MS)


def _sample(
    query: RouteQuery,
    model: ModelId,
    links: Links,
    fleet: Fleet,
    kept: PrefixCaches,
    rng: RandomSource,
    most: int,
) -> Sequence[WorkerView]:
    """The session's worker, those that keep most of the prompt, and others by chance."""
    found: dict[WorkerId, WorkerView] = {}
    named = {query.home} if query.home is not None else set()
    for link, _ in reversed(links):
        if len(named) > _MOST_KEEPERS:
            break
        keepers = kept.keepers(link)
        if len(keepers) > _MOST_KEEPERS:
            keepers = _pick_randomly(list(keepers), _MOST_KEEPERS, rng)
        named.update(keepers)
    for worker in named:
        view = fleet.worker(worker)
        if view is not None and model in view.models:
            found[worker] = view
    pool = fleet.warm(model) or fleet.holding(model)
    found |= {view.id: view for view in _pick_randomly(pool, most - len(found), rng)}
    return sorted(found.values(), key=lambda view: view.id)


def _pick_randomly(pool: Sequence[T], count: int, rng: RandomSource) -> list[T]:
    """Some by chance; one may be among them more than once."""
    return [pool[min(int(rng() * len(pool)), len(pool) - 1)] for _ in range(count)]


def _candidate(
    view: WorkerView, model: ModelId, query: RouteQuery, links: Links, kept: PrefixCaches
) -> Candidate:
    status = view.models[model]
    found = find_cached_share(links, kept.links(view.id)) if links else NOTHING
    places = status.speed.rows or view.report.max_batch_size
    forecast = predict_ttft(view, status, query, found)
    return Candidate(view, status, found, forecast, view.choices / max(1, places))
