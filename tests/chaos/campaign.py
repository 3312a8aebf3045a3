"""A campaign: a baseline, load and faults for a while, recovery, and the judgement."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from statistics import quantiles
from typing import Any

import psutil

from shared.client import connect
from tests.access.roles import as_client
from tests.chaos.checker import (
    Strike,
    Violation,
    judge_order,
    judge_stream,
    judge_wire,
    stale_messages,
)
from tests.chaos.faults import FAULTS, Fault, Mischief
from tests.chaos.fleet import Fleet
from tests.chaos.known import Known
from tests.chaos.logs import taken_over
from tests.chaos.users import Asked, Users
from tests.faults.answers import DONE, Record
from tests.faults.footprint import Footprint, footprints
from tests.nats_proxy import NatsProxy

_WIRE_SLACK_S = 6.0
_SPARE_TASKS = 5
_TAKEN_WITHIN_S = 15.0
_WORTH_DRAWING_S = 0.2


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do.

    Attributes:
        pause_s: between two faults, drawn from this range.
        users: of the client library, by hand, and conversations.
        answered_within_s: what takes longer hangs.
        settles_s: in which all is well again after a fault, and as it was after the last one.
    """

    seed: int = 1
    seconds: float = 60.0
    faults: Sequence[Fault] = FAULTS
    most_faults: int | None = None
    pause_s: tuple[float, float] = (1.0, 8.0)
    users: tuple[int, int, int] = (6, 4, 3)
    answered_within_s: float = 90.0
    settles_s: float = 40.0


@dataclass(slots=True)
class Report:
    """What came of it.

    Attributes:
        strikes: what happened, with times from the begin on.
        pauses_s: the longest one of each stream.
        stood_still: each pause of a stream that is worth drawing: when it ended, and how long it
            was.
        taken_s: by kind of fault, until another worker had taken a request.
        resumed_s: likewise, until its client heard of that one.
    """

    seed: int
    seconds: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    strikes: list[Strike] = field(default_factory=list)
    requests: int = 0
    tokens: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    pauses_s: list[float] = field(default_factory=list)
    stood_still: list[tuple[float, float]] = field(default_factory=list)
    taken_s: dict[str, list[float]] = field(default_factory=dict)
    resumed_s: dict[str, list[float]] = field(default_factory=dict)
    figures: dict[str, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Without each single pause."""
        whole = asdict(self)
        del whole["stood_still"]
        whole["pauses_s"] = summary(self.pauses_s)
        for name, times in (("taken_s", self.taken_s), ("resumed_s", self.resumed_s)):
            whole[name] = {kind: summary(each) for kind, each in times.items()}
        return whole


def summary(values: Sequence[float]) -> dict[str, float]:
    """Count, median, 95th percentile and the most."""
    if not values:
        return {"count": 0}
    cuts = quantiles(values, n=20, method="inclusive") if len(values) > 1 else [values[0]] * 19
    return {
        "count": len(values), "p50": round(cuts[9], 3), "p95": round(cuts[18], 3),
        "max": round(max(values), 3),
    }  # fmt: skip


class Campaign:
    """Runs a plan against a fleet that is running.

    Args:
        known: what is asked, and the true answers.
        say: told of what happens, a line at a time.
    """

    def __init__(self, fleet: Fleet, plan: Plan, known: Known, say: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._known = known
        self._plan = plan
        self._say = say
        self._chance = random.Random(plan.seed)
        self._began = 0.0
        self.report = Report(plan.seed)
        self.report.figures["ties left out"] = known.ties

    async def run(self) -> Report:
        plan, fleet = self._plan, self._fleet
        async with (
            NatsProxy(*fleet.urls) as line,
            connect(as_client(line.url)) as cluster,
            fleet.client() as plain,
        ):
            before, tasks = footprints(self._everyone()), await self._tasks()
            users = Users(cluster, plain, self._known, self._chance, limit_s=plan.answered_within_s)
            mischief = Mischief(
                fleet, random.Random(plan.seed + 1), plan.faults, well_within_s=plan.settles_s
            )
            library, by_hand, talkers = plan.users
            asking = asyncio.create_task(
                users.run(library=library, by_hand=by_hand, talkers=talkers)
            )
            self._began = began = time.monotonic()
            await self._strike(mischief, began)
            await mischief.finish()
            users.stop()
            self._say("no more faults; waiting for the last answers")
            await asking
            self.report.seconds = time.monotonic() - began
            await self._settle(before, tasks)
        self._judge(users.asked, mischief)
        return self.report

    async def _strike(self, mischief: Mischief, began: float) -> None:
        plan, chance = self._plan, random.Random(self._plan.seed + 2)
        while time.monotonic() - began < plan.seconds:
            await asyncio.sleep(chance.uniform(*plan.pause_s))
            if plan.most_faults is not None and len(mischief.strikes) >= plan.most_faults:
                return
            if (drawn := mischief.draw()) is None:
                continue
            fault, victims = drawn
            at = time.monotonic() - began
            self._say(f"{at:7.1f} s  {fault.name}: {', '.join(v.name for v in victims)}")
            mischief.start(fault, victims)

    def _everyone(self) -> dict[str, psutil.Process]:
        return {"the harness": psutil.Process(), **self._fleet.processes()}

    async def _tasks(self) -> dict[str, int]:
        return {name: report["tasks"] for name, report in (await self._fleet.health()).items()}

    async def _settle(self, before: dict[str, Footprint], tasks: dict[str, int]) -> None:
        """Wait until all is as it was; what is not is a violation."""
        try:
            await self._fleet.until_whole(self._plan.settles_s)
        except AssertionError as problem:
            self.report.violations.append(Violation("recovery", "the cluster", str(problem)))
            return
        deadline = time.monotonic() + self._plan.settles_s
        while True:
            health = await self._fleet.health()
            left = self._left_over(health, before, tasks)
            if not left:
                break
            if time.monotonic() > deadline:
                self.report.violations += [Violation("leak", *each) for each in left]
                break
            await asyncio.sleep(0.5)
        for name in ("migrations", "adoptions", "differing_requests"):
            found = [int(report.get(name, 0)) for report in health.values()]
            self.report.figures[name] = sum(found)

    def _left_over(
        self, health: dict[str, Any], before: dict[str, Footprint], tasks: dict[str, int]
    ) -> list[tuple[str, str]]:
        left = []
        for name, report in health.items():
            counted = ("active_requests", "queued_requests")
            left += [(name, f"{what} is {report[what]}") for what in counted if report.get(what)]
            if report["tasks"] > tasks[name] + _SPARE_TASKS:
                left.append((name, f"asyncio tasks from {tasks[name]} to {report['tasks']}"))
        now = footprints(self._everyone())
        left += [(name, "it is not there") for name in before if name not in now]
        left += [
            (name, grown)
            for name, held in before.items()
            if name in now and name != "the harness"
            for grown in now[name].grown_beyond(held)
        ]
        return left

    def _judge(self, asked: Asked, mischief: Mischief) -> None:
        report, strikes = self.report, mischief.strikes
        report.faults = dict(Counter(strike.kind for strike in strikes))
        report.requests = len(asked.streams) + len(asked.wire)
        report.tokens = asked.tokens
        ends = [record.end or "none" for record, _ in asked.streams]
        ends += [_end_of(record.ends) for record, _ in asked.wire]
        report.ends = dict(Counter(ends))
        report.strikes = [
            replace(each, at=each.at - self._began, until=each.until - self._began)
            for each in strikes
        ]
        report.pauses_s = [longest_pause_s(record) for record, _ in asked.streams]
        report.stood_still = [
            (late - self._began, late - early)
            for record, _ in asked.streams
            for early, late in pairwise(record.heard_at)
            if late - early >= _WORTH_DRAWING_S
        ]
        epoch = time.time() - time.monotonic()
        report.taken_s = taken_over(self._fleet.folder, strikes, epoch, _TAKEN_WITHIN_S)
        report.resumed_s = resumed(asked, strikes)
        report.figures["stale messages"] = sum(stale_messages(wire) for wire, _ in asked.wire)
        report.violations += judged(asked, strikes)
        problems = mischief.problems
        report.violations += [Violation("recovery", "a victim", problem) for problem in problems]


def judged(asked: Asked, strikes: Sequence[Strike]) -> list[Violation]:
    """Every promise that was broken to who asked."""
    found = []
    for record, truth in asked.streams:
        found += judge_stream(record, truth, strikes)
    for wire, truth in asked.wire:
        found += judge_wire(wire, truth, strikes, _WIRE_SLACK_S)
    for turns in asked.sessions:
        found += judge_order(turns, strikes)
    return found


def resumed(asked: Asked, strikes: Sequence[Strike]) -> dict[str, list[float]]:
    """By kind of fault: from a strike at a worker to the first message of its successor, of each
    request that was written by hand and that this worker was answering."""
    found: dict[str, list[float]] = {}
    for strike in strikes:
        for record, _ in asked.wire:
            before = [m for at, m in record.messages if at <= strike.at and m.get("worker")]
            after = [(at, m) for at, m in record.messages if at > strike.at and m.get("worker")]
            if not before or before[-1]["worker"] not in strike.victims or before[-1].get("done"):
                continue
            for at, message in after:
                if message["attempt"] > before[-1]["attempt"]:
                    found.setdefault(strike.kind, []).append(at - strike.at)
                    break
    return found


def longest_pause_s(record: Record) -> float:
    """Between two pieces of an answer, or the last one and its end."""
    return max((late - early for early, late in pairwise(record.heard_at)), default=0.0)


def _end_of(ends: Sequence[Any]) -> str:
    if not ends:
        return "none"
    return str(ends[0]["error"]["code"]) if "error" in ends[0] else DONE
