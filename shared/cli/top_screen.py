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
from shared.cli.views.frame import Look, frame
from shared.cli.views.history import History
from shared.cli.views.workers import SORTS
from shared.client import Cluster
from shared.errors import ClusterError

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class TopScreen:
    """Asks the cluster, shows what it says, and does what keys say. Run it once.

    Args:
        interval_s: from one question to the next.
    """

    def __init__(self, cluster: Cluster, console: Console, interval_s: float) -> None:
        self._cluster = cluster
        self._console = console
        self._interval_s = interval_s
        self._history = History(interval_s)
        self._keyboard = Keyboard(self._on_key)
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._ended = asyncio.Event()
        self._running = asyncio.Event()
        self._running.set()
        self._answered_at = 0.0
        self._look: Look

    async def run(self) -> None:
        """Return when a key or a signal ends it; the terminal is then as it was.

        Raises:
            ClusterError: the first question had no answer.
        """
        self._look = self._take(Look(await self._cluster.health(), speeds={}))
        loop = asyncio.get_running_loop()
        handlers = dict.fromkeys(_ENDS, self._ended.set)
        handlers |= {signal.SIGWINCH: self._draw, signal.SIGTSTP: self._suspend}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        asking = asyncio.create_task(self._keep_asking())
        ended = asyncio.create_task(self._ended.wait())
        try:
            self._show()
            await asyncio.wait((asking, ended), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()  # it never ends but by an error of ours
        finally:
            self._hide()
            for number in handlers:
                loop.remove_signal_handler(number)
            asking.cancel()
            ended.cancel()
            await asyncio.gather(asking, ended, return_exceptions=True)

    async def _keep_asking(self) -> None:
        due = time.monotonic()
        while True:
            due = max(time.monotonic(), due + self._interval_s)
            await asyncio.sleep(due - time.monotonic())
            await self._running.wait()
            try:
                health = await self._cluster.health()
            except ClusterError as error:
                self._look = replace(self._look, problem=error.message)
            else:
                if not self._look.paused:
                    self._look = self._take(replace(self._look, health=health))
            self._draw()

    def _take(self, look: Look) -> Look:
        """The look with what its health, which has just come, tells."""
        now = self._answered_at = time.monotonic()
        workers = look.health.workers
        self._history.observe(workers, now)
        speeds = {worker.id: self._history.speeds(worker.id, now) for worker in workers}
        return replace(look, speeds=speeds, news=self._history.news, problem=None)

    def _on_key(self, key: str) -> None:
        match key.lower():
            case "q":
                self._ended.set()
            case "p":
                self._look = replace(self._look, paused=not self._look.paused)
                if self._look.paused:
                    self._running.clear()
                else:
                    self._running.set()
            case "s":
                after = (SORTS.index(self._look.sort) + 1) % len(SORTS)
                self._look = replace(self._look, sort=SORTS[after])
            case _:
                return
        self._draw()

    def _draw(self) -> None:
        if not self._live.is_started:
            return
        look = replace(self._look, age_s=time.monotonic() - self._answered_at)
        width, height = self._console.size
        self._live.update(Group(*frame(look, width, height)), refresh=True)

    def _show(self) -> None:
        self._keyboard.start()
        self._live.start()
        self._draw()

    def _hide(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            self._live.stop()
        self._keyboard.stop()

    def _suspend(self) -> None:
        """Ctrl-Z: give the terminal back to the shell until it lets us go on."""
        self._hide()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._show()
