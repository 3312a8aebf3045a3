"""One side of a comparison: agents against a cluster, before and after its restart."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

from shared.cli.benches.comparison import BenchLoad, BenchSide
from shared.cli.benches.conversation import AgentConversation, TurnResult
from shared.cli.benches.prompts import BenchPrompts
from shared.cli.local.cluster import LocalCluster, LocalPlan
from shared.cli.local.serving import run_supervised, wait_until_ready
from shared.cli.progress import ProgressDisplay, startup_progress
from shared.client import Cluster, connect
from shared.ids import SkillName
from shared.messages.health import ClusterHealth
from shared.settings import ClusterSettings

T = TypeVar("T")


async def run_in_cluster(
    plan: LocalPlan,
    settings: ClusterSettings,
    work: Callable[[Cluster, ClusterHealth], Awaitable[T]],
    *,
    show: Callable[[ClusterHealth], None],
    print_status: Callable[[str], None],
) -> T:
    """Start a cluster, run `work` once all its workers are ready, and stop the cluster.

    All processes have ended when this returns, raises, or is cancelled.

    Args:
        show: called with the health until the workers are ready.
        print_status: called with a line when a process is restarted.

    Raises:
        ClusterError: the cluster does not start, or a process ended too often.
        Exception: what `work` raises.
    """
    local = LocalCluster(plan, settings, print_status)

    async def connected() -> T:
        async with connect(local.client) as cluster:
            return await work(cluster, await wait_until_ready(cluster, local.worker_ids, show))

    try:
        await local.start()
        result = await run_supervised(local, connected())
        await local.stop()
        return result
    finally:
        await local.kill()  # does nothing after stop()


Recorded = Mapping[int, Mapping[int, str]]
"""Answers that replace the model's answers in the conversations, by agent and turn."""

_SKILL = SkillName("chat")


class BenchSideRun:
    """One run of a side; use it once.

    Args:
        name: shown in the progress display.
    """

    def __init__(
        self,
        name: str,
        load: BenchLoad,
        prompts: BenchPrompts,
        recorded: Recorded,
        display: ProgressDisplay,
    ) -> None:
        self.model = ""
        self.chip = ""
        self._name = name
        self._activity = ""
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
        self, plan: LocalPlan, settings: ClusterSettings, print_status: Callable[[str], None]
    ) -> BenchSide:
        """Run all turns. The clusters before and after the restart share the folder of the plan.

        Raises:
            ClusterError: a cluster does not start, or a request failed.
        """
        for turns in self._load.parts:
            self._show("starting" if not self._answers else "restarting")
            work = partial(self._part, turns)
            await run_in_cluster(
                plan, settings, work, show=self._show_startup, print_status=print_status
            )
        self._show("done")
        return BenchSide(self._answers, self._seconds, self._restart_s, self._problems)

    async def _part(self, turns: range, cluster: Cluster, health: ClusterHealth) -> None:
        """Run the turns of one cluster: agents concurrently, the turns of an agent in order."""
        if self._ended_at is not None:
            self._restart_s = time.perf_counter() - self._ended_at
        await cluster.generate(
            "Hello", max_tokens=1
        )  # not measured: the first request may be slower
        await self._prepare(cluster, health)
        self._activity = (
            f"turn {turns[0]}" if len(turns) == 1 else f"turns {turns[0]} to {turns[-1]}"
        )
        self._show(self._activity)
        began_at = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for agent in self._conversations:
                tasks.create_task(self._run_turns(agent, turns, cluster))
        self._ended_at = time.perf_counter()
        self._seconds += self._ended_at - began_at
        self._problems += _problems(await cluster.health())
        self._show("stopping")

    async def _prepare(self, cluster: Cluster, health: ClusterHealth) -> None:
        """Read the model and chip, and create the agents, with the first cluster."""
        if self._conversations:
            return
        self.model = health.skills[_SKILL][0]
        self.chip = _chip(health)
        await self._prompts.measure(cluster)
        self._conversations = [
            AgentConversation(agent, self._prompts.system, self._recorded.get(agent, {}))
            for agent in range(1, self._load.agents + 1)
        ]

    async def _run_turns(self, agent: AgentConversation, turns: range, cluster: Cluster) -> None:
        for turn in turns:
            prompt = self._prompts.user_prompt(agent.number, turn)
            self._answers.append(await agent.ask(cluster, turn, prompt, self._load.max_tokens))
            self._show(self._activity)

    def _show(self, activity: str) -> None:
        fraction = len(self._answers) / (self._load.agents * self._load.turns)
        self._display.update(self._name, activity, fraction)

    def _show_startup(self, health: ClusterHealth) -> None:
        for worker in health.workers:
            self._display.update(self._name, *startup_progress(worker))


def _chip(health: ClusterHealth) -> str:
    hardware = health.workers[0].hardware
    return hardware.chip or hardware.accelerator


def _problems(health: ClusterHealth) -> list[str]:
    found = []
    for engine in (engine for worker in health.workers for engine in worker.engines):
        if engine.kv_memory.problem is not None:
            found.append(f"KV memory was not written to disk: {engine.kv_memory.problem}")
        if engine.restarts:
            found.append("the engine crashed and was restarted")
    return found
