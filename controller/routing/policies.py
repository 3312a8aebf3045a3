"""Routing policies: how one of the eligible workers is picked."""

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
_SIMILAR = 1.1
_SIMILAR_MS = 25.0
"""Predictions that differ by no more than this count as equal: nobody notices 25 ms, and a worker
with one noisy measurement would never be picked, and so never be measured again."""


@dataclass(slots=True)
class Candidate:
    """A worker that can serve a request, and how well.

    Attributes:
        cached: the share of the prompt that is cached there.
        ttft: predicted time to the first token.
        load: share of its batch slots that are in use; above 1, requests wait.
    """

    worker: WorkerView
    status: ModelStatus
    cached: CachedShare
    ttft: TTFTPrediction
    load: float


class Policy(Protocol):
    """Picks one of several candidates, which are sorted by worker id.

    Attributes:
        name: in the settings.
        reason: why its pick is the best, for people to read.
    """

    name: str
    reason: str

    def pick(self, candidates: Sequence[Candidate], rng: RandomSource) -> Candidate: ...


class PrefixAware:
    """The shortest predicted TTFT; of workers with about the same TTFT, the least busy one."""

    name = "prefix-aware"
    reason = "the shortest predicted time to the first token"

    def pick(self, candidates: Sequence[Candidate], rng: RandomSource) -> Candidate:
        limit_ms = similar_ttft_ms(candidates)
        similar = (candidate for candidate in candidates if candidate.ttft.total_ms <= limit_ms)
        return _least_busy(similar, rng)


class LeastBusy:
    """The lowest share of batch slots in use."""

    name = "least-busy"
    reason = "the lowest share of batch slots in use"

    def pick(self, candidates: Sequence[Candidate], rng: RandomSource) -> Candidate:
        return _least_busy(_most_ready(candidates), rng)


class RoundRobin:
    """The workers in turn, for each model."""

    name = "round-robin"
    reason = "next in turn"

    def __init__(self) -> None:
        self._last: dict[ModelId, WorkerId] = {}

    def pick(self, candidates: Sequence[Candidate], rng: RandomSource) -> Candidate:
        ready = _most_ready(candidates)
        model = ready[0].status.id
        last = self._last.get(model)
        following = (candidate for candidate in ready if last is None or candidate.worker.id > last)
        chosen = next(following, ready[0])
        self._last[model] = chosen.worker.id
        return chosen


class PowerOfTwo:
    """The less busy of two sampled workers (Mitzenmacher, "The Power of Two Choices in Randomized
    Load Balancing", 2001)."""

    name = "power-of-two"
    reason = "the less busy of two sampled workers"

    def pick(self, candidates: Sequence[Candidate], rng: RandomSource) -> Candidate:
        rest = list(_most_ready(candidates))
        sampled: list[Candidate] = []
        while rest and len(sampled) < 2:
            sampled.append(rest.pop(min(int(rng() * len(rest)), len(rest) - 1)))
        return _least_busy(sampled, rng)


_POLICIES: dict[str, Callable[[], Policy]] = {
    kind.name: kind for kind in (PrefixAware, LeastBusy, RoundRobin, PowerOfTwo)
}


def policy_named(name: str) -> Policy:
    """Create a policy. Each controller needs its own, as some policies have state."""
    return _POLICIES[name]()


def similar_ttft_ms(candidates: Sequence[Candidate]) -> float:
    """Return the longest predicted TTFT that counts as equal to the shortest one."""
    shortest = min(candidate.ttft.total_ms for candidate in candidates)
    # A worker that reports negative times must not make the limit shorter than the shortest TTFT.
    return max(shortest, _SIMILAR * shortest + _SIMILAR_MS)


def _most_ready(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return the candidates whose model is warm, else loading, else available."""
    best = min(_READINESS[candidate.status.state] for candidate in candidates)
    return [candidate for candidate in candidates if _READINESS[candidate.status.state] == best]


def _least_busy(candidates: Iterable[Candidate], rng: RandomSource) -> Candidate:
    return min(candidates, key=lambda candidate: (candidate.load, rng()))
