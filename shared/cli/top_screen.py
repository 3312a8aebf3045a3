"""The live screen of `cluster top`."""

import asyncio
import contextlib
import os
import re
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from shared.cli.views.frame import TopFrameData, frame
from shared.cli.views.history import WorkerHistory
from shared.cli.views.workers import SORTS
from shared.client import Cluster
from shared.errors import ClusterError

_ESCAPE_SEQUENCE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
"""An arrow key, a function key, or Alt with another key: ignored."""


class Keyboard:
    """Calls `on_key` on the event loop with each typed character, from `start` to `stop`.

    Calls it with "q" when the terminal is closed. Does nothing if standard input is not a terminal.

    A thread reads the keys: an event loop would make the terminal non-blocking, also for output.
    """

    def __init__(self, on_key: Callable[[str], None]) -> None:
        self._on_key = on_key
        self._before: list[Any] = []
        self._thread: threading.Thread | None = None
        self._stop_writer = -1

    def start(self) -> None:
        """Start reading; also allowed again after `stop`."""
        if self._thread is not None or not sys.stdin.isatty():
            return
        terminal = sys.stdin.fileno()
        self._before = termios.tcgetattr(terminal)
        tty.setcbreak(terminal)
        stop_reader, self._stop_writer = os.pipe()
        loop = asyncio.get_running_loop()
        arguments = (loop, terminal, stop_reader)
        self._thread = threading.Thread(target=self._read, args=arguments, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Restore the terminal."""
        if self._thread is None:
            return
        os.close(self._stop_writer)
        self._thread.join()
        self._thread = None
        with contextlib.suppress(termios.error):  # the terminal is closed
            # Flush: keys typed here must not become input of the shell.
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSAFLUSH, self._before)

    def _read(self, loop: asyncio.AbstractEventLoop, terminal: int, stop_reader: int) -> None:
        while True:
            readable, _, _ = select.select([terminal, stop_reader], [], [])
            if stop_reader in readable:
                break
            typed = b""
            with contextlib.suppress(OSError):
                typed = os.read(terminal, 64)
            if not typed:
                loop.call_soon_threadsafe(self._on_key, "q")
                break
            for character in _ESCAPE_SEQUENCE.sub(b"", typed).decode(errors="ignore"):
                loop.call_soon_threadsafe(self._on_key, character)
        os.close(stop_reader)


_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class TopScreen:
    """Polls the health, renders frames, and handles keys. Run a screen only once.

    Args:
        interval_s: time from one poll to the next.
    """

    def __init__(self, cluster: Cluster, console: Console, interval_s: float) -> None:
        self._cluster = cluster
        self._console = console
        self._interval_s = interval_s
        self._history = WorkerHistory(interval_s)
        self._keyboard = Keyboard(self._on_key)
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._ended = asyncio.Event()
        self._running = asyncio.Event()
        self._running.set()
        self._updated_at = 0.0
        self._data: TopFrameData

    async def run(self) -> None:
        """Return after a key or a signal that quits; the terminal is restored then.

        Raises:
            ClusterError: the first query of the health failed.
        """
        self._data = self._record(TopFrameData(await self._cluster.health(), token_rates={}))
        loop = asyncio.get_running_loop()
        handlers = dict.fromkeys(_END_SIGNALS, self._ended.set)
        handlers |= {signal.SIGWINCH: self._render, signal.SIGTSTP: self._suspend}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        polling = asyncio.create_task(self._keep_polling())
        ended = asyncio.create_task(self._ended.wait())
        try:
            self._show()
            await asyncio.wait((polling, ended), return_when=asyncio.FIRST_COMPLETED)
            if polling.done():
                polling.result()  # polling ends only by an unexpected error
        finally:
            self._hide()
            for number in handlers:
                loop.remove_signal_handler(number)
            polling.cancel()
            ended.cancel()
            await asyncio.gather(polling, ended, return_exceptions=True)

    async def _keep_polling(self) -> None:
        due = time.monotonic()
        while True:
            due = max(time.monotonic(), due + self._interval_s)
            await asyncio.sleep(due - time.monotonic())
            await self._running.wait()
            try:
                health = await self._cluster.health()
            except ClusterError as error:
                self._data = replace(self._data, error=error.message)
            else:
                if not self._data.paused:
                    self._data = self._record(replace(self._data, health=health))
            self._render()

    def _record(self, data: TopFrameData) -> TopFrameData:
        """Update the history with a new health; return the frame data with rates and counts."""
        now = self._updated_at = time.monotonic()
        workers = data.health.workers
        self._history.observe(workers, now)
        token_rates = {worker.id: self._history.token_rates(worker.id, now) for worker in workers}
        return replace(
            data, token_rates=token_rates, new_counts=self._history.new_counts, error=None
        )

    def _on_key(self, key: str) -> None:
        match key.lower():
            case "q":
                self._ended.set()
            case "p":
                self._data = replace(self._data, paused=not self._data.paused)
                if self._data.paused:
                    self._running.clear()
                else:
                    self._running.set()
            case "s":
                after = (SORTS.index(self._data.sort) + 1) % len(SORTS)
                self._data = replace(self._data, sort=SORTS[after])
            case _:
                return
        self._render()

    def _render(self) -> None:
        if not self._live.is_started:
            return
        data = replace(self._data, age_s=time.monotonic() - self._updated_at)
        width, height = self._console.size
        self._live.update(Group(*frame(data, width, height)), refresh=True)

    def _show(self) -> None:
        self._keyboard.start()
        self._live.start()
        self._render()

    def _hide(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is closed
            self._live.stop()
        self._keyboard.stop()

    def _suspend(self) -> None:
        """Handle Ctrl-Z: restore the terminal, stop, and show the screen again after SIGCONT."""
        self._hide()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._show()
