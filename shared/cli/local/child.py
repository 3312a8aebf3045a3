"""A child process of `cluster up` that logs to a file and ends with its parent."""

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from shared.folders import append_private
from shared.service import PARENT_VARIABLE

_KILL_AFTER_S = 5.0


class Child:
    """A process whose stdin is a pipe from this process.

    The pipe closes when this process ends, even if it is killed, and the child stops then.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = {**os.environ, **environment, PARENT_VARIABLE: "1"}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process in its own session, so that Ctrl-C reaches only the parent."""
        with append_private(self.log) as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    async def wait(self) -> int:
        """Return the exit status after the process has ended."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self, patience_s: float) -> None:
        """Terminate the process; kill it if it has not ended after `patience_s`."""
        if not self.running:
            return
        self.terminate()
        try:
            async with asyncio.timeout(patience_s):
                await self.wait()
        except TimeoutError:
            await self.kill()

    def terminate(self) -> None:
        if self._process is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    async def kill(self) -> None:
        """Kill the process. The pipe is closed first, so that a wrapper ends its own child."""
        assert self._process is not None
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(_KILL_AFTER_S):
                await self.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self.wait()

    def last_lines(self, count: int = 10) -> str:
        """Return the last lines of the log, for error messages."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])
        return ""
