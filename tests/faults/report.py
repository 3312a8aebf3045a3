"""What came of a campaign: its violations, and figures beside them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import quantiles
from typing import Any

from tests.faults.evidence import Evidence, Injection
from tests.faults.judge import Violation, stale_messages
from tests.faults.records import Record

_WORTH_DRAWING_S = 0.2


@dataclass(slots=True)
class Report:
    """What came of a campaign.

    Attributes:
        injections: what happened, with times from the begin on.
        pauses_s: the longest one of each stream.
        stood_still: each pause of a stream that is worth drawing: when it ended, and how long it
            was.
        taken_s: by kind of fault, until another worker had taken a request.
        resumed_s: likewise, until its client heard of that one.
        figures: counts that the cluster and the clients made.
    """

    seed: int
    seconds: float
    injections: list[Injection]
    requests: int
    tokens: int
    ends: dict[str, int]
    pauses_s: list[float]
    stood_still: list[tuple[float, float]]
    resumed_s: dict[str, list[float]]
    violations: list[Violation]
    taken_s: dict[str, list[float]] = field(default_factory=dict)
    figures: dict[str, int] = field(default_factory=dict)

    @property
    def faults(self) -> dict[str, int]:
        """How often each kind happened."""
        return dict(Counter(each.kind for each in self.injections))

    def as_json(self) -> dict[str, Any]:
        """Without each single pause."""
        whole = asdict(self) | {"faults": self.faults}
        del whole["stood_still"]
        whole["pauses_s"] = summary(self.pauses_s)
        for name, times in (("taken_s", self.taken_s), ("resumed_s", self.resumed_s)):
            whole[name] = {kind: summary(each) for kind, each in times.items()}
        return whole


def report_of(
    evidence: Evidence, violations: list[Violation], *, seed: int, began: float, seconds: float
) -> Report:
    """The figures that evidence holds.

    Args:
        began: when the campaign did, on the clock of the evidence.
    """
    records = [record for record, _ in evidence.streams]
    wire = [record for record, _ in evidence.wire]
    return Report(
        seed,
        seconds,
        [
            Injection(e.kind, e.targets, e.at - began, e.until - began, e.loses_messages)
            for e in evidence.injections
        ],
        len(records) + len(wire),
        evidence.tokens,
        dict(Counter([*(r.end or "none" for r in records), *(each.end for each in wire)])),
        [longest_pause_s(record) for record in records],
        [
            (late - began, late - early)
            for record in records
            for early, late in pairwise(record.heard_at)
            if late - early >= _WORTH_DRAWING_S
        ],
        resumed(evidence),
        violations,
        figures={"stale messages": sum(map(stale_messages, wire))},
    )


def summary(values: Sequence[float]) -> dict[str, float]:
    """Count, median, 95th percentile and the most."""
    if not values:
        return {"count": 0}
    cuts = quantiles(values, n=20, method="inclusive") if len(values) > 1 else [values[0]] * 19
    return {
        "count": len(values), "p50": round(cuts[9], 3), "p95": round(cuts[18], 3),
        "max": round(max(values), 3),
    }  # fmt: skip


def resumed(evidence: Evidence) -> dict[str, list[float]]:
    """By kind of fault: from its injection at a worker to the first message of its successor, of
    each request that was written by hand and that this worker was answering."""
    found: dict[str, list[float]] = {}
    for injection in evidence.injections:
        for record, _ in evidence.wire:
            told = [(at, m) for at, m in record.messages if m.get("worker")]
            before = [m for at, m in told if at <= injection.at]
            after = [(at, m) for at, m in told if at > injection.at]
            if not before or before[-1].get("done"):
                continue
            if before[-1]["worker"] not in injection.targets:
                continue
            for at, message in after:
                if message["attempt"] > before[-1]["attempt"]:
                    found.setdefault(injection.kind, []).append(at - injection.at)
                    break
    return found


def longest_pause_s(record: Record) -> float:
    """Between two pieces of an answer, or the last one and its end."""
    return max((late - early for early, late in pairwise(record.heard_at)), default=0.0)
