"""One process of a fleet, started again whenever it ends."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from shared.service import PARENT_VARIABLE
from tests.faults.child import set_clock
from tests.nats_proxy import NatsProxy

Kind = Literal["nats", "controller", "worker"]
_ROOT = Path(__file__).parents[2]
_RESTART_DELAY_S = 0.5


@dataclass(slots=True)
class Member:
    """One process that is always wanted.

    Attributes:
        line: between it and the servers; None for a server.
        busy: something happens to it, or it is not yet over it.
    """

    kind: Kind
    name: str
    command: list[str]
    log: Path
    environment: Mapping[str, str]
    line: NatsProxy | None = None
    clock: Path | None = None
    busy: bool = False
    _process: asyncio.subprocess.Process | None = None

    @property
    def started(self) -> bool:
        return self._process is not None

    @property
    def process(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    @property
    def engines(self) -> list[psutil.Process]:
        """Of a worker, those that run."""
        with contextlib.suppress(psutil.Error):
            return [p for p in self.process.children() if "worker.engine" in p.cmdline()]
        return []

    async def supervise(self) -> None:
        """Start it, and again half a second after it has ended, until cancelled."""
        while True:
            with self.log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self.command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=_ROOT,
                    env={**os.environ, **self.environment, PARENT_VARIABLE: "1"},
                    start_new_session=True,
                )
            await self._process.wait()
            await asyncio.sleep(_RESTART_DELAY_S)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def ended(self, limit_s: float) -> bool:
        """Whether the present process ends within the limit."""
        assert self._process is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._process.wait()
                return True
        return False

    def last_line(self) -> str:
        """Of its log."""
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace").rstrip().rpartition("\n")[2]
        return ""

    def jump(self, seconds: float) -> None:
        """Have its clock be so wrong."""
        assert self.clock is not None
        set_clock(self.clock, seconds)


def descendants(process: psutil.Process) -> Iterator[psutil.Process]:
    """A process and all below it."""
    with contextlib.suppress(psutil.Error):
        yield process
        yield from process.children(recursive=True)
