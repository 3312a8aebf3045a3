"""The live screen of `cluster top`."""

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import replace

from rich.console import Console, Group
from rich.live import Live

from shared.cli.keyboard import Keyboard
from shared.cli.views.frame import TopFrameData, frame
from shared.cli.views.history import WorkerHistory
from shared.cli.views.workers import SORTS
from shared.client import Cluster
from shared.errors import ClusterError

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
