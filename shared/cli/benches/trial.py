"""Agents against a cluster without the KV memory, then with it."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shared.cli.benches.comparison import BenchLoad, Comparison, Side
from shared.cli.benches.prompts import Prompts
from shared.cli.benches.side import Recorded, SideRun
from shared.cli.local.access import SharedToken
from shared.cli.local.cluster import LocalPlan
from shared.cli.progress import LoadDisplay
from shared.settings import ClusterSettings

_ENABLED = "CLUSTER__WORKER__KV_CACHE__ENABLED"
_DISK_PATH = "CLUSTER__WORKER__KV_CACHE__DISK_PATH"


@dataclass(frozen=True, slots=True)
class BenchTrial:
    """What is asked, and of what.

    Attributes:
        config, model, settings: of the clusters, as `cluster up` takes them.
        say: told of processes that are started again.
    """

    load: BenchLoad
    config: Path | None
    model: str | None
    settings: ClusterSettings
    display: LoadDisplay
    say: Callable[[str], None]

    async def run(self) -> Comparison:
        """Both sides, one after the other.

        Without the KV memory comes first: a machine that grows slow as it grows warm does not
        favour the memory. Agents of both sides go on from the answers of the first, so that the
        prompts are the same even where an answer is not.

        Raises:
            ClusterError: a cluster does not start, or an answer does not come.
        """
        prompts = Prompts(self.load)
        first = SideRun("without KV memory", self.load, prompts, {}, self.display)
        without = await self._run(first, {_ENABLED: "false"})
        second = SideRun("with KV memory", self.load, prompts, _recorded(without), self.display)
        kept = await self._run(second, {_ENABLED: "true"})
        return Comparison(self.load, first.model, first.chip, kept, without)

    async def _run(self, side: SideRun, environment: dict[str, str]) -> Side:
        # An engine that is killed may write to the end.
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
            return await side.run(plan, self.settings, self.say)


def _recorded(side: Side) -> Recorded:
    recorded: dict[int, dict[int, str]] = {}
    for answer in side.answers:
        recorded.setdefault(answer.agent, {})[answer.turn] = answer.text
    return recorded
