"""Selects a worker: filter, score, pick."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from controller.fleet.worker_view import WorkerView
from controller.routing.ineligibility import (
    RECENTLY_GONE,
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
    similar_ttft_ms,
)
from controller.routing.route_query import Links, RouteQuery
from controller.routing.ttft_prediction import NOT_CACHED, find_cached_share, predict_ttft
from shared.ids import ModelId, WorkerId
from shared.messages.events import Tier

MAX_COMPARED = 8
"""Maximum number of workers that are compared. If more have a model: those with most of the prompt
cached, and random ones: two random workers are nearly as good a choice as all (Mitzenmacher)."""

_MAX_CACHING = 4
_MUCH_SLOWER = 1.5
_MUCH_SLOWER_MS = 250.0
"""A session leaves its worker, and a list of prompts skips a worker, whose predicted TTFT is more
than 1.5 times the shortest one plus 250 ms."""

T = TypeVar("T")

SESSION_REASON = "served the previous turn of the session"
AFFINITY_REASON = "served the last request with this affinity"
ONLY_REASON = "the only worker that can serve it now"
TRIAL_REASON = "new settings on trial: gets its share of requests that are not urgent"
LIST_REASON = "the lowest share of batch slots in use: prompts of a list are spread"


class LiveWorkers(Protocol):
    """The workers that are alive."""

    def workers_with(self, model: ModelId) -> Sequence[WorkerView]:
        """Return the workers that have a model, or can load it, sorted by id."""

    def warm_workers_with(self, model: ModelId) -> Sequence[WorkerView]:
        """Return those of them that have the model warm."""

    def worker(self, worker: WorkerId) -> WorkerView | None: ...

    @property
    def workers(self) -> Sequence[WorkerView]: ...

    @property
    def on_trial(self) -> Collection[WorkerId]:
        """Workers with settings that are on trial. They get no request of high priority that others
        can serve, and their share of all others."""

    def recently_gone(self, now: float) -> Sequence[WorkerView]:
        """Return the last views of workers that ended a moment ago."""


class CachedPrefixes(Protocol):
    """Which prefixes workers have cached."""

    def links(self, worker: WorkerId) -> Mapping[str, Tier]:
        """Return the prefix hashes that a worker has cached."""

    def workers_caching(self, link: str) -> Collection[WorkerId]:
        """Return the workers that have a prefix cached."""


class RouteDecision(NamedTuple):
    """
    Attributes:
        chosen: one of `candidates`.
        reason: why it was chosen, for people to read.
        ineligibilities: why other workers cannot serve the request, as far as they were examined.
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
    fleet: LiveWorkers,
    prefixes: CachedPrefixes,
    policy: Policy,
    *,
    now: float,
    rng: RandomSource,
    excluded: Collection[WorkerId] = (),
    max_compared: int = MAX_COMPARED,
) -> RouteDecision:
    """Select a worker that can serve `query`, and the model.

    The first model that any worker can serve wins. A session stays on its worker unless another
    one is much faster; a request with an affinity stays unless another one is noticeably faster;
    otherwise the policy picks.

    Args:
        excluded: workers that have already rejected this request.

    Raises:
        NoRoute: no worker can serve it; gives the reason for each.
    """
    ineligibilities: dict[WorkerId, Ineligibility] = {}
    on_trial = fleet.on_trial
    for model in query.models:
        links = query.links(model)
        holding = fleet.workers_with(model)
        pools = [holding]
        if len(holding) > max_compared:  # a sample of good candidates first
            pools.insert(0, _sample(query, model, links, fleet, prefixes, rng, max_compared))
        for views in pools:
            candidates = []
            for view in views:
                if view.id in excluded:
                    continue
                ineligibility = find_ineligibility(view, model, query, now)
                if ineligibility is None:
                    candidates.append(_candidate(view, model, query, links, prefixes))
                else:
                    ineligibilities.setdefault(view.id, ineligibility)
            if candidates:
                trial = _pick_on_trial(candidates, query, on_trial, rng) if on_trial else None
                if trial is not None:
                    return RouteDecision(model, trial, TRIAL_REASON, candidates, ineligibilities)
                if query.level == "high" and on_trial:
                    proven = [
                        candidate for candidate in candidates if candidate.worker.id not in on_trial
                    ]
                    candidates = proven or candidates
                chosen, reason = _pick(candidates, query, policy, rng)
                return RouteDecision(model, chosen, reason, candidates, ineligibilities)
    for view in fleet.workers:
        if view.id not in excluded and view.id not in ineligibilities:
            ineligibility = find_ineligibility(view, query.models[0], query, now)
            if ineligibility is not None:
                ineligibilities[view.id] = ineligibility
    gone = fleet.recently_gone(now)
    for view in gone:
        if is_capable(view, query):
            ineligibilities.setdefault(view.id, RECENTLY_GONE)
    raise NoRoute(query, ineligibilities, no_workers=not (fleet.workers or gone))


def _pick_on_trial(
    candidates: Sequence[Candidate],
    query: RouteQuery,
    on_trial: Collection[WorkerId],
    rng: RandomSource,
) -> Candidate | None:
    """Return a worker on trial for its share of the requests that are not urgent, even if the
    policy would never pick the worker: the trial needs requests. A much slower worker gets none,
    and a session stays on its home worker."""
    if query.level == "high" or (query.is_turn and query.home is not None) or not on_trial:
        return None
    pick = candidates[min(int(rng() * len(candidates)), len(candidates) - 1)]
    is_slow = pick.ttft.total_ms > _much_slower_ms(candidates)
    return pick if pick.worker.id in on_trial and not is_slow and len(candidates) > 1 else None


def _pick(
    candidates: Sequence[Candidate], query: RouteQuery, policy: Policy, rng: RandomSource
) -> tuple[Candidate, str]:
    if query.home is not None:
        home = next(
            (candidate for candidate in candidates if candidate.worker.id == query.home), None
        )
        limit_ms = _much_slower_ms(candidates) if query.is_turn else similar_ttft_ms(candidates)
        if home is not None and home.ttft.total_ms <= limit_ms:
            return home, SESSION_REASON if query.is_turn else AFFINITY_REASON
    if len(candidates) == 1:
        return candidates[0], ONLY_REASON
    if query.is_list_part and isinstance(policy, PrefixAware):
        limit = _much_slower_ms(candidates)
        fast = [candidate for candidate in candidates if candidate.ttft.total_ms <= limit]
        return LeastBusy().pick(fast, rng), LIST_REASON
    return policy.pick(candidates, rng), policy.reason


def _much_slower_ms(candidates: Sequence[Candidate]) -> float:
    """Return the predicted TTFT above which a worker is much slower than the fastest one."""
    shortest = min(candidate.ttft.total_ms for candidate in candidates)
    limit_ms = _MUCH_SLOWER * shortest + _MUCH_SLOWER_MS
    return max(shortest, limit_ms)  # a worker may report a time below zero


def _sample(
    query: RouteQuery,
    model: ModelId,
    links: Links,
    fleet: LiveWorkers,
    prefixes: CachedPrefixes,
    rng: RandomSource,
    count: int,
) -> Sequence[WorkerView]:
    """Return about `count` workers: the session's, those with most of the prompt cached, and random
    ones."""
    found: dict[WorkerId, WorkerView] = {}
    named = {query.home} if query.home is not None else set()
    for link, _ in reversed(links):
        if len(named) > _MAX_CACHING:
            break
        caching = prefixes.workers_caching(link)
        if len(caching) > _MAX_CACHING:
            caching = _pick_randomly(list(caching), _MAX_CACHING, rng)
        named.update(caching)
    for worker in named:
        view = fleet.worker(worker)
        if view is not None and model in view.models:
            found[worker] = view
    pool = fleet.warm_workers_with(model) or fleet.workers_with(model)
    found |= {view.id: view for view in _pick_randomly(pool, count - len(found), rng)}
    return sorted(found.values(), key=lambda view: view.id)


def _pick_randomly(pool: Sequence[T], count: int, rng: RandomSource) -> list[T]:
    """Sample with replacement."""
    return [pool[min(int(rng() * len(pool)), len(pool) - 1)] for _ in range(count)]


def _candidate(
    view: WorkerView, model: ModelId, query: RouteQuery, links: Links, prefixes: CachedPrefixes
) -> Candidate:
    status = view.models[model]
    cached = find_cached_share(links, prefixes.links(view.id)) if links else NOT_CACHED
    slots = status.speed.rows or view.report.max_batch_size
    forecast = predict_ttft(view, status, query, cached)
    return Candidate(view, status, cached, forecast, view.choices / max(1, slots))
