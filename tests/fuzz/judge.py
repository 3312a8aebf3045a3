"""What an attack may not do; pure functions over what was observed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tests.fuzz.target import ProcessState

_MAX_GROWTH = 0.05
_NOISE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Burst:
    """One attack, and what came after it.

    Attributes:
        at_s: since the campaign began.
        served_s: seconds that each small request of the other client took, by the way it came;
            None if it was not served.
        errors: what the other client was told instead.
        states: the processes after it, by pid.
    """

    number: int
    kind: str
    at_s: float
    served_s: Mapping[str, float | None]
    errors: Sequence[str]
    states: Mapping[int, ProcessState]


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Attributes:
        alone_s: seconds that the other client's request takes without an attack, by the way.
        spare_s: what a request may take longer, at least.
    """

    alone_s: Mapping[str, float]
    spare_s: float = 1.0

    def of(self, way: str) -> float:
        return max(3 * self.alone_s[way], self.alone_s[way] + self.spare_s)


def violations(
    before: Mapping[int, ProcessState], bursts: Sequence[Burst], limits: Limits
) -> list[str]:
    """Return every broken promise in words, in the order of the bursts."""
    found: list[str] = []
    states = before
    for burst in bursts:
        where = f"burst {burst.number} ({burst.kind})"
        found += [f"{where}: {what}" for what in _changes(states, burst.states)]
        found += [f"{where}: {error}" for error in burst.errors]
        for way, took_s in burst.served_s.items():
            if took_s is not None and took_s > limits.of(way):
                found.append(
                    f"{where}: the other client's request over {way} took {took_s:.2f} s; alone it "
                    f"takes {limits.alone_s[way]:.2f} s"
                )
        states = burst.states
    return found


def _changes(before: Mapping[int, ProcessState], after: Mapping[int, ProcessState]) -> list[str]:
    """Return which processes ended or have another connection to NATS."""
    found = [f"{state.name} (pid {pid}) ended" for pid, state in before.items() if pid not in after]
    for pid, state in after.items():
        known = before.get(pid)
        if known is not None and known.port != state.port:
            found.append(f"{state.name} (pid {pid}) lost its connection to NATS")
    return found


def growth(bursts: Sequence[Burst], *, within_s: float) -> dict[str, float]:
    """Return how much the memory of each process grew in the last `within_s`, as a share: the
    median of the last tenth of that time over the median of its first tenth."""
    if not bursts:
        return {}
    since = bursts[-1].at_s - within_s
    last = [burst for burst in bursts if burst.at_s >= since]
    tenth = max(1, len(last) // 10)
    found = {}
    for pid, state in last[-1].states.items():
        memory = [burst.states[pid].memory_bytes for burst in last if pid in burst.states]
        first, end = median(memory[:tenth]), median(memory[-tenth:])
        found[f"{state.name} ({pid})"] = (end - first) / max(first, _NOISE_BYTES)
    return found


def memory_over_time(bursts: Sequence[Burst], *, parts: int) -> dict[str, list[int]]:
    """Return the memory of each process that runs at the end, in MiB: the median of each of so many
    parts of the campaign."""
    length = max(1, -(-len(bursts) // parts))
    found = {}
    for pid, state in bursts[-1].states.items() if bursts else ():
        found[f"{state.name} ({pid})"] = [
            round(median(memory) / 2**20)
            for at in range(0, len(bursts), length)
            if (
                memory := [
                    burst.states[pid].memory_bytes
                    for burst in bursts[at : at + length]
                    if pid in burst.states
                ]
            )
        ]
    return found


def leaks(grown: Mapping[str, float]) -> list[str]:
    """Return the processes whose memory grew by 5 % and more."""
    return [f"{name} grew by {share:.1%}" for name, share in grown.items() if share >= _MAX_GROWTH]
