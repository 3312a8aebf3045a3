"""Who is picked of those who can serve a request: policies by name."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from controller.fleet.worker_view import WorkerView
from controller.routing.ttft_prediction import CachedShare, TTFTPrediction
from shared.ids import ModelId, WorkerId
from shared.messages.model_status import ModelState, ModelStatus

RandomSource = Callable[[], float]
"""A random number from 0 to 1."""

_READINESS: dict[ModelState, int] = {"warm": 0, "loading": 1, "available": 2}
_NEAR = 1.1
_NEAR_MS = 25.0
"""Forecasts that differ by no more than this say the same: nobody notices 25 ms, and what was
measured in a noisy moment would keep a worker that is never picked from being measured again."""


@dataclass(slots=True)
class Candidate:
    """A worker that can serve a request, and how well.

    Attributes:
        kept: of the prompt.
        load: the share of its places in batches that are taken; over 1 requests wait.
    """

    worker: WorkerView
    status: ModelStatus
    kept: CachedShare
    forecast: TTFTPrediction
    load: float


class Policy(Protocol):
    """How one of several candidates, in the order of their ids, is picked.

    Attributes:
        name: as the settings have it.
        reason: why its pick is the best, for people.
    """

    name: str
    reason: str

    def pick(self, candidates: Sequence[Candidate], rng: RandomSource) -> Candidate: ...


class PrefixAware:
    """The first token soonest; of those who are about as soon, the least busy."""

    name = "prefix-aware"
    reason = "the first token is predicted there soonest"

    def pick(self, candidates: Sequence[Candidate], rng: RandomSource) -> Candidate:
        limit_ms = near_ms(candidates)
        near = (one for one in candidates if one.forecast.total_ms <= limit_ms)
        return _least_busy(near, rng)


class LeastBusy:
    """The lowest share of places in use."""

    name = "least-busy"
    reason = "the least of its places are taken"

    def pick(self, candidates: Sequence[Candidate], rng: RandomSource) -> Candidate:
        return _least_busy(_readiest(candidates), rng)


class RoundRobin:
    """One after another, for each model."""

    name = "round-robin"
    reason = "it is its turn"

    def __init__(self) -> None:
        self._last: dict[ModelId, WorkerId] = {}

    def pick(self, candidates: Sequence[Candidate], rng: RandomSource) -> Candidate:
        ready = _readiest(candidates)
        model = ready[0].status.id
        last = self._last.get(model)
        following = (one for one in ready if last is None or one.worker.id > last)
        chosen = next(following, ready[0])
        self._last[model] = chosen.worker.id
        return chosen


class PowerOfTwo:
    """The less busy one of two that are drawn (Mitzenmacher, "The Power of Two Choices in
    Randomized Load Balancing", 2001)."""

    name = "power-of-two"
    reason = "it is the less busy one of two that were drawn"

    def pick(self, candidates: Sequence[Candidate], rng: RandomSource) -> Candidate:
        rest = list(_readiest(candidates))
        sampled: list[Candidate] = []
        while rest and len(sampled) < 2:
            sampled.append(rest.pop(min(int(rng() * len(rest)), len(rest) - 1)))
        return _least_busy(sampled, rng)


_POLICIES: dict[str, Callable[[], Policy]] = {
    kind.name: kind for kind in (PrefixAware, LeastBusy, RoundRobin, PowerOfTwo)
}


def policy_named(name: str) -> Policy:
    """A new policy; each controller has one, as some remember."""
    return _POLICIES[name]()


def near_ms(candidates: Sequence[Candidate]) -> float:
    """Forecasts up to this are about as short as the shortest one."""
    soonest = min(candidate.forecast.total_ms for candidate in candidates)
    return max(soonest, _NEAR * soonest + _NEAR_MS)  # of times below 0, if one tells such


def _readiest(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Those that have the model warm, or are next to that."""
    best = min(_READINESS[candidate.status.state] for candidate in candidates)
    return [one for one in candidates if _READINESS[one.status.state] == best]


def _least_busy(candidates: Iterable[Candidate], rng: RandomSource) -> Candidate:
    return min(candidates, key=lambda candidate: (candidate.load, rng()))
