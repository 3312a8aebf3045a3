"""Downloads as the tests start and watch them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from shared.errors import ModelError
from tests.hub import TOKEN, HubStandIn
from worker.models.download import AskPeers, download

REPO = "owner/model"
WEIGHTS = "model.safetensors"
WEIGHT_BYTES = 1_000_000
PLACE = 400_000
"""Where faults strike."""
NEEDED = {"config.json", "tokenizer.json", "chat_template.jinja", WEIGHTS}
PATIENCE_S = 30.0


@dataclass(slots=True)
class Fetching:
    """One download, and what was said of it."""

    repo: str = REPO
    revision: str | None = None
    trust_remote_code: bool = False
    stall_limit_s: float = PATIENCE_S
    ask_peers: AskPeers | None = None
    sizes: list[tuple[int, int]] = field(default_factory=list)
    progress: list[float] = field(default_factory=list)
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def folder(self) -> Path:
        return await download(
            self.repo,
            self.revision,
            trust_remote_code=self.trust_remote_code,
            stall_limit_s=self.stall_limit_s,
            on_size=self.on_size,
            report=self.report,
            ask_peers=self.ask_peers,
        )

    async def error(self) -> str:
        with pytest.raises(ModelError) as raised:
            await self.folder()
        assert TOKEN not in raised.value.message
        return raised.value.message

    def report(self, share: float) -> None:
        self.progress.append(share)
        self.moved.set()

    async def until(self, share: float) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.progress or self.progress[-1] < share:
                self.moved.clear()
                await self.moved.wait()

    def on_size(self, total_bytes: int, missing_bytes: int) -> None:
        self.sizes.append((total_bytes, missing_bytes))


@asynccontextmanager
async def stalled(hub: HubStandIn, model: Path) -> AsyncIterator[None]:
    """A download that has all that comes, up to the fault, and is cancelled at the end."""
    hub.faults.stall[WEIGHTS] = PLACE
    fetching = Fetching()
    total_bytes = sum((model / name).stat().st_size for name in NEEDED)
    lost_bytes = (model / WEIGHTS).stat().st_size - PLACE
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(fetching.folder())
        await fetching.until((total_bytes - lost_bytes) / total_bytes)
        yield
        task.cancel()


def cache(model: Path) -> Path:
    """Where the hub's cache is in these tests, beside the model that the hub has."""
    return model.parent / "hf" / "hub"


def fetching_processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if _is_fetching(child)]


def _is_fetching(child: psutil.Process) -> bool:
    try:
        return "worker.models.fetch_process" in child.cmdline()
    except psutil.NoSuchProcess:  # or it has ended, and nobody has waited for it yet
        return False
