"""The choice of a worker: filter, score, pick."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from controller.fleet.worker_view import WorkerView
from controller.routing.forecast import NOTHING, find_kept, foretell
from controller.routing.need import Links, Need
from controller.routing.obstacles import (
    GONE,
    NoRoute,
    Obstacle,
    Obstacles,
    could_serve,
    find_obstacle,
)
from controller.routing.policies import (
    Candidate,
    Draw,
    LeastBusy,
    Policy,
    PrefixAware,
    near_ms,
)
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


class KeptPrefixes(Protocol):
    """What workers keep of prompts."""

    def links(self, worker: WorkerId) -> Mapping[str, Tier]:
        """The links that a worker keeps."""

    def keepers(self, link: str) -> Collection[WorkerId]:
        """The workers that keep a link."""


class Decision(NamedTuple):
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
    obstacles: Obstacles

    @property
    def worker(self) -> WorkerView:
        return self.chosen.worker


def choose(
    need: Need,
    fleet: Fleet,
    kept: KeptPrefixes,
    policy: Policy,
    *,
    now: float,
    draw: Draw,
    excluded: Collection[WorkerId] = (),
    most: int = MOST_COMPARED,
) -> Decision:
    """A worker that can serve `need`, with the best model it has for it.

    The first model that any worker can serve wins. A session stays where it was served, while
    that is not much slower, what has an affinity while it is as soon there; else the policy picks.

    Args:
        excluded: workers that refused this request already.

    Raises:
        NoRoute: no worker is left; says why for each.
    """
    obstacles: dict[WorkerId, Obstacle] = {}
    on_trial = fleet.on_trial
    for model in need.models:
        links = need.links(model)
        holding = fleet.holding(model)
        pools = [holding]  # of many first some that are likely to be good
        if len(holding) > most:
            pools.insert(0, _sample(need, model, links, fleet, kept, draw, most))
        for views in pools:
            candidates = []
            for view in views:
                if view.id in excluded:
                    continue
                obstacle = find_obstacle(view, model, need, now)
                if obstacle is None:
                    candidates.append(_candidate(view, model, need, links, kept))
                else:
                    obstacles.setdefault(view.id, obstacle)
            if candidates:
                tried = _tried(candidates, need, on_trial, draw) if on_trial else None
                if tried is not None:
                    return Decision(model, tried, TRIAL, candidates, obstacles)
                if need.level == "high" and on_trial:
                    proven = [one for one in candidates if one.worker.id not in on_trial]
                    candidates = proven or candidates
                chosen, reason = _pick(candidates, need, policy, draw)
                return Decision(model, chosen, reason, candidates, obstacles)
    for view in fleet.workers:
        if view.id not in excluded and view.id not in obstacles:
            obstacle = find_obstacle(view, need.models[0], need, now)
            if obstacle is not None:
                obstacles[view.id] = obstacle
    gone = fleet.gone_lately(now)
    for view in gone:
        if could_serve(view, need):
            obstacles.setdefault(view.id, GONE)
    raise NoRoute(need, obstacles, nobody=not (fleet.workers or gone))


def _tried(
    candidates: Sequence[Candidate], need: Need, on_trial: Collection[WorkerId], draw: Draw
) -> Candidate | None:
    """A worker on trial, where it is its turn: of what is not urgent each gets its share, also
    where the policy would never pick it, or nothing would show what it is like. Not where it is
    much slower, and no session that has a home."""
    if need.level == "high" or (need.is_turn and need.home is not None) or not on_trial:
        return None
    one = candidates[min(int(draw() * len(candidates)), len(candidates) - 1)]
    slow = one.forecast.total_ms > _much_slower_ms(candidates)
    return one if one.worker.id in on_trial and not slow and len(candidates) > 1 else None


def _pick(
    candidates: Sequence[Candidate], need: Need, policy: Policy, draw: Draw
) -> tuple[Candidate, str]:
    if need.home is not None:
        home = next((one for one in candidates if one.worker.id == need.home), None)
        limit_ms = _much_slower_ms(candidates) if need.is_turn else near_ms(candidates)
        if home is not None and home.forecast.total_ms <= limit_ms:
            return home, HOME if need.is_turn else AFFINITY
    if len(candidates) == 1:
        return candidates[0], ONLY
    if need.among_others and isinstance(policy, PrefixAware):
        limit = _much_slower_ms(candidates)
        near = [one for one in candidates if one.forecast.total_ms <= limit]
        return LeastBusy().pick(near, draw), SPREAD
    return policy.pick(candidates, draw), policy.reason


def _much_slower_ms(candidates: Sequence[Candidate]) -> float:
    """Forecasts above this are much longer than the shortest one."""
    soonest = min(candidate.forecast.total_ms for candidate in candidates)
    return max(soonest, _MUCH_SLOWER * soonest + _MUCH_SLOWER_MS)


def _sample(
    need: Need,
    model: ModelId,
    links: Links,
    fleet: Fleet,
    kept: KeptPrefixes,
    draw: Draw,
    most: int,
) -> Sequence[WorkerView]:
    """The session's worker, those that keep most of the prompt, and others by chance."""
    found: dict[WorkerId, WorkerView] = {}
    named = {need.home} if need.home is not None else set()
    for link, _ in reversed(links):
        if len(named) > _MOST_KEEPERS:
            break
        keepers = kept.keepers(link)
        if len(keepers) > _MOST_KEEPERS:
            keepers = _drawn(list(keepers), _MOST_KEEPERS, draw)
        named.update(keepers)
    for worker in named:
        view = fleet.worker(worker)
        if view is not None and model in view.models:
            found[worker] = view
    pool = fleet.warm(model) or fleet.holding(model)
    found |= {view.id: view for view in _drawn(pool, most - len(found), draw)}
    return sorted(found.values(), key=lambda view: view.id)


def _drawn(pool: Sequence[T], count: int, draw: Draw) -> list[T]:
    """Some by chance; one may be among them more than once."""
    return [pool[min(int(draw() * len(pool)), len(pool) - 1)] for _ in range(count)]


def _candidate(
    view: WorkerView, model: ModelId, need: Need, links: Links, kept: KeptPrefixes
) -> Candidate:
    status = view.models[model]
    found = find_kept(links, kept.links(view.id)) if links else NOTHING
    places = status.speed.rows or view.report.max_batch_size
    forecast = foretell(view, status, need, found)
    return Candidate(view, status, found, forecast, view.choices / max(1, places))
