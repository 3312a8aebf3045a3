"""One side of a trial: agents against clusters of one kind, one after the other."""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial

from shared.cli.benches.comparison import BenchLoad, Side
from shared.cli.benches.conversation import AgentConversation, TurnResult
from shared.cli.benches.prompts import Prompts
from shared.cli.local.cluster import LocalPlan
from shared.cli.local.temporary import in_cluster
from shared.cli.progress import LoadDisplay, warming
from shared.client import Cluster
from shared.ids import SkillName
from shared.messages.health import ClusterHealth
from shared.settings import ClusterSettings

Recorded = Mapping[int, Mapping[int, str]]
"""What agents go on from instead of the answers, by agent and turn."""

_SKILL = SkillName("chat")


class SideRun:
    """Use it once.

    Args:
        name: as it is shown.
    """

    def __init__(
        self, name: str, load: BenchLoad, prompts: Prompts, recorded: Recorded, display: LoadDisplay
    ) -> None:
        self.model = ""
        self.chip = ""
        self._name = name
        self._doing = ""
        self._load = load
        self._prompts = prompts
        self._recorded = recorded
        self._display = display
        self._conversations: list[AgentConversation] = []
        self._answers: list[TurnResult] = []
        self._seconds = 0.0
        self._ended_at: float | None = None
        self._restart_s: float | None = None
        self._problems: list[str] = []

    async def run(
        self, plan: LocalPlan, settings: ClusterSettings, say: Callable[[str], None]
    ) -> Side:
        """All turns. The clusters have the folder of the plan in common.

        Raises:
            ClusterError: a cluster does not start, or an answer does not come.
        """
        for turns in self._load.parts:
            self._show("starting" if not self._answers else "starting again")
            work = partial(self._part, turns)
            await in_cluster(plan, settings, work, show=self._show_warming, say=say)
        self._show("done")
        return Side(self._answers, self._seconds, self._restart_s, self._problems)

    async def _part(self, turns: range, cluster: Cluster, health: ClusterHealth) -> None:
        """The turns of one cluster; all agents at once, the turns of one after another."""
        if self._ended_at is not None:
            self._restart_s = time.perf_counter() - self._ended_at
        await cluster.generate("Hello", max_tokens=1)  # whatever a first request may have to do
        await self._meet(cluster, health)
        self._doing = f"turn {turns[0]}" if len(turns) == 1 else f"turns {turns[0]} to {turns[-1]}"
        self._show(self._doing)
        began_at = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for agent in self._conversations:
                tasks.create_task(self._talk(agent, turns, cluster))
        self._ended_at = time.perf_counter()
        self._seconds += self._ended_at - began_at
        self._problems += _problems(await cluster.health())
        self._show("stopping")

    async def _meet(self, cluster: Cluster, health: ClusterHealth) -> None:
        """What only the first cluster is asked."""
        if self._conversations:
            return
        self.model = health.skills[_SKILL][0]
        self.chip = _chip(health)
        await self._prompts.measure(cluster)
        self._conversations = [
            AgentConversation(agent, self._prompts.system, self._recorded.get(agent, {}))
            for agent in range(1, self._load.agents + 1)
        ]

    async def _talk(self, agent: AgentConversation, turns: range, cluster: Cluster) -> None:
        for turn in turns:
            told = self._prompts.told(agent.number, turn)
            self._answers.append(await agent.ask(cluster, turn, told, self._load.max_tokens))
            self._show(self._doing)

    def _show(self, what: str) -> None:
        share = len(self._answers) / (self._load.agents * self._load.turns)
        self._display.update(self._name, what, share)

    def _show_warming(self, health: ClusterHealth) -> None:
        for worker in health.workers:
            self._display.update(self._name, *warming(worker))


def _chip(health: ClusterHealth) -> str:
    hardware = health.workers[0].hardware
    return hardware.chip or hardware.accelerator


def _problems(health: ClusterHealth) -> list[str]:
    found = []
    for engine in (engine for worker in health.workers for engine in worker.engines):
        if engine.kv_memory.problem is not None:
            found.append(f"not all was written to disk: {engine.kv_memory.problem}")
        if engine.restarts:
            found.append("the engine ended meanwhile, and was started again")
    return found
