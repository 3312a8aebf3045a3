"""A pseudo-terminal with a command in it."""

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import struct
import sys
import termios
from collections.abc import Callable
from typing import Any, Self

import psutil

from tests.processes import wait_for
from tests.shared.cli.simulated_cluster import LIMIT_S, ROOT, environment_of

_ENTER_SCREEN = "\x1b[?1049h"
_LEAVE_SCREEN = "\x1b[?1049l"
_SHOW_CURSOR = "\x1b[?25h"
_HOME = "\x1b[H"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """Runs `cluster` with these arguments on a terminal of 24 lines of 100 columns."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._ours, self._theirs = os.openpty()
        self._written = ""
        self._more = asyncio.Event()
        self._before: list[Any] = termios.tcgetattr(self._theirs)
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._set_size(columns=100, lines=24)
        asyncio.get_running_loop().add_reader(self._ours, self._read)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shared.cli", *self._arguments),
            cwd=ROOT,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={
                **{
                    key: value
                    for key, value in os.environ.items()
                    if key not in ("COLUMNS", "LINES")
                },
                "TERM": "xterm-256color",
                **environment_of("admin", self._arguments),
            },
            start_new_session=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    async def restored(self) -> None:
        """Return once modes, screen and cursor are as they were before."""

        def as_before() -> bool:
            screens = self._written.rpartition(_LEAVE_SCREEN)
            return (
                termios.tcgetattr(self._theirs) == self._before
                and _SHOW_CURSOR in screens[0]
                and _ENTER_SCREEN not in screens[2]
            )

        await self._until(as_before, "the terminal is restored")

    async def shows(self, text: str, *, without: str | None = None) -> None:
        """Return once the last frame has this text, and not that one."""

        def shown() -> bool:
            *_, last = ["", *_COLOURS.sub("", self._written).split(_HOME)]
            return text in last and (without is None or without not in last)

        await self._until(shown, text)

    async def wrote(self, text: str) -> None:
        """Return once it has written this, colours and all."""
        await self._until(lambda: text in self._written, text)

    def has_written(self, text: str) -> bool:
        return text in self._written

    async def ended(self) -> int:
        """Its exit status."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), LIMIT_S)

    async def stopped(self) -> None:
        """Return once it stands still, as after Ctrl-Z."""
        assert self._process is not None
        process = psutil.Process(self._process.pid)
        await asyncio.to_thread(
            wait_for, lambda: process.status() == psutil.STATUS_STOPPED, "it stands still"
        )

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def resize(self, *, columns: int, lines: int) -> None:
        self._set_size(columns=columns, lines=lines)
        self.signal(signal.SIGWINCH)

    def _set_size(self, *, columns: int, lines: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            self._written += os.read(self._ours, 65536).decode(errors="replace")
        self._more.set()

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                while not condition():
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(
                f"not on the terminal of {os.get_terminal_size(self._theirs)}: {what!r}; it has:\n"
                f"{self._written}"
            ) from None
