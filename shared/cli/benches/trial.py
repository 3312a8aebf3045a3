"""The benchmark run: a cluster without KV memory, then one with it."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shared.cli.benches.comparison import BenchComparison, BenchLoad, BenchSide
from shared.cli.benches.prompts import BenchPrompts
from shared.cli.benches.side import BenchSideRun, Recorded
from shared.cli.local.access import SharedToken
from shared.cli.local.cluster import LocalPlan
from shared.cli.progress import ProgressDisplay
from shared.settings import ClusterSettings

_ENABLED = "CLUSTER__WORKER__KV_CACHE__ENABLED"
_DISK_PATH = "CLUSTER__WORKER__KV_CACHE__DISK_PATH"


@dataclass(frozen=True, slots=True)
class BenchTrial:
    """The load and the cluster of a benchmark.

    Attributes:
        config, model, settings: the configuration of the cluster, as for `cluster up`.
        print_status: called with a line when a process is restarted.
    """

    load: BenchLoad
    config: Path | None
    model: str | None
    settings: ClusterSettings
    display: ProgressDisplay
    print_status: Callable[[str], None]

    async def run(self) -> BenchComparison:
        """Run both sides, one after the other.

        The side without KV memory is first, so that thermal throttling does not favour KV memory.
        Conversations of both sides continue with the answers of the first, so that prompts are
        equal even if an answer differs.

        Raises:
            ClusterError: a cluster does not start, or a request failed.
        """
        prompts = BenchPrompts(self.load)
        first = BenchSideRun("without KV memory", self.load, prompts, {}, self.display)
        without = await self._run(first, {_ENABLED: "false"})
        second = BenchSideRun(
            "with KV memory", self.load, prompts, _recorded(without), self.display
        )
        cached = await self._run(second, {_ENABLED: "true"})
        return BenchComparison(self.load, first.model, first.chip, cached, without)

    async def _run(self, side: BenchSideRun, environment: dict[str, str]) -> BenchSide:
        # Ignore errors: a killed engine may still be writing into the folder.
        with tempfile.TemporaryDirectory(prefix="mlx-bench-", ignore_cleanup_errors=True) as name:
            plan = LocalPlan(
                workers=1,
                host="127.0.0.1",
                port=0,
                access=SharedToken(None),
                config=self.config,
                model=self.model,
                folder=Path(name),
                environment={**environment, _DISK_PATH: str(Path(name) / "kv")},
            )
            return await side.run(plan, self.settings, self.print_status)


def _recorded(side: BenchSide) -> Recorded:
    recorded: dict[int, dict[int, str]] = {}
    for answer in side.answers:
        recorded.setdefault(answer.agent, {})[answer.turn] = answer.text
    return recorded
