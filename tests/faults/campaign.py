"""A campaign: load and faults for a while, recovery, and the judgement."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shared.client import connect
from tests.access.roles import as_client
from tests.faults.evidence import Evidence, Observation
from tests.faults.faults import FAULTS, Draw, Fault
from tests.faults.fleet import Fleet
from tests.faults.injector import Injector
from tests.faults.judge import judge_leaks, judged
from tests.faults.known import Known
from tests.faults.logs import counts, taken_over
from tests.faults.report import Report, report_of
from tests.faults.users import Users
from tests.nats_proxy import NatsProxy

_TAKEN_WITHIN_S = 15.0
_OBSERVE_AGAIN_S = 0.5
_US = "the clients"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do.

    Attributes:
        seconds: for which faults begin; with `once` at most.
        once: each fault happens once; else they are drawn by weight.
        most_faults: after that many nothing more happens.
        pause_s: between two faults, drawn from this range.
        pace: how long faults last, as a factor.
        users: of the client library, by hand, and conversations.
        thinks_s: how long a user pauses between two requests, at most.
        answered_within_s: what takes longer hangs.
        silence_s: an answer on the wire that says nothing for this long has lost its end.
        patience_s: who writes by hand publishes again when nothing was heard for so long.
        settles_s: in which all is well again after a fault, and as it was after the last one.
    """

    seed: int = 1
    seconds: float = 60.0
    faults: Sequence[Fault] = FAULTS
    once: bool = False
    most_faults: int | None = None
    pause_s: tuple[float, float] = (1.0, 6.0)
    pace: float = 1.0
    users: tuple[int, int, int] = (6, 4, 3)
    thinks_s: float = 0.2
    answered_within_s: float = 90.0
    silence_s: float = 30.0
    patience_s: float = 1.0
    settles_s: float = 40.0


class Campaign:
    """Runs a plan against a fleet that is running.

    Args:
        known: what is asked, and the true answers.
        say: told of what happens, a line at a time.

    Attributes:
        evidence: of what happened, once `run` has returned.
    """

    def __init__(self, fleet: Fleet, plan: Plan, known: Known, say: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._known = known
        self._plan = plan
        self._say = say
        self.evidence = Evidence()

    async def run(self) -> Report:
        """Do it all, and judge it."""
        plan, fleet = self._plan, self._fleet
        async with (
            NatsProxy(*fleet.urls) as line,
            connect(as_client(line.url)) as cluster,
            fleet.client() as plain,
        ):
            before = await self._observe()
            users = Users(
                cluster,
                plain,
                self._known,
                random.Random(plan.seed),
                limit_s=plan.answered_within_s,
                silence_s=plan.silence_s,
                patience_s=plan.patience_s,
                thinks_s=plan.thinks_s,
            )
            injector = Injector(
                fleet,
                Draw(random.Random(plan.seed + 1), plan.pace),
                plan.faults,
                once=plan.once,
                well_within_s=plan.settles_s,
            )
            library, by_hand, talkers = plan.users
            began = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(users.run(library=library, by_hand=by_hand, talkers=talkers))
                await self._inject(injector, began)
                await injector.finish()
                users.stop()
                self._tell(began, "no more faults; waiting for the last answers")
            seconds = time.monotonic() - began
            self._tell(began, "all answers are there; waiting until nothing is left of them")
            problems, after = await self._settle(before)
            self._tell(began, "judging")
        evidence = self.evidence = replace(
            users.evidence,
            injections=injector.injections,
            problems=[*problems, *injector.problems],
            before=before,
            after=after,
        )
        report = report_of(evidence, judged(evidence), seed=plan.seed, began=began, seconds=seconds)
        epoch = time.time() - time.monotonic()
        report.taken_s = taken_over(fleet.folder, injector.injections, epoch, _TAKEN_WITHIN_S)
        report.figures |= {"ties left out": self._known.ties, **counts(fleet.folder)}
        return report

    async def _inject(self, injector: Injector, began: float) -> None:
        plan, chance = self._plan, random.Random(self._plan.seed + 2)
        while time.monotonic() - began < plan.seconds:
            await asyncio.sleep(chance.uniform(*plan.pause_s))
            if plan.most_faults is not None and len(injector.injections) >= plan.most_faults:
                return
            if (injected := injector.inject_one()) is not None:
                self._tell(began, f"{injected.kind}: {', '.join(injected.targets)}")
            if injector.exhausted:
                return

    def _tell(self, began: float, what: str) -> None:
        self._say(f"{time.monotonic() - began:7.1f} s  {what}")

    async def _observe(self) -> Observation:
        """What the fleet holds, and the tasks of this process."""
        seen = await self._fleet.observation()
        return replace(seen, tasks={**seen.tasks, _US: len(asyncio.all_tasks())})

    async def _settle(self, before: Observation) -> tuple[list[str], Observation | None]:
        """Wait until the fleet is whole, and then until nothing is left; what did not come, and
        what was seen last."""
        try:
            await self._fleet.until_whole(self._plan.settles_s)
        except AssertionError as problem:
            return [str(problem)], None
        deadline = time.monotonic() + self._plan.settles_s
        while judge_leaks(before, after := await self._observe()):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(_OBSERVE_AGAIN_S)
        return [], after
