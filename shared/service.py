"""The frame of every long-running command: event loop, signals, death of the parent."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from shared import subjects
from shared.bus import Bus
from shared.freed_memory import return_freed_memory_regularly
from shared.settings.nats import NatsSettings

T = TypeVar("T")

logger = logging.getLogger(__name__)

PARENT_VARIABLE = "CLUSTER_PARENT_PIPE"
"""Set to 1 by a parent process that holds the other end of our stdin: EOF means that it died."""


class StopSignal:
    """Set when the process must stop. `immediate`: without draining."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.immediate = False

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def request(self, *, immediate: bool = False) -> None:
        self.immediate = self.immediate or immediate
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


async def first_of(*stops: StopSignal) -> None:
    """Return once one of them was requested."""
    waiting = [asyncio.ensure_future(stop.wait()) for stop in stops]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waiting:
            future.cancel()


async def unless_stopped(stop: StopSignal, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`, or None if a stop was requested first."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        stopped.cancel()
        task.cancel()


async def run_on_bus(
    stop: StopSignal,
    settings: NatsSettings,
    role: str,
    name: str,
    work: Callable[[Bus], Awaitable[None]],
) -> int:
    """Connect, however long that takes, run `work`, and close. Returns 0, also if stopped earlier.

    Args:
        role: worker, controller or gateway; role and name prefix the inboxes.
    """
    prefix = subjects.inbox_prefix(role, name)
    connecting = Bus.connect(settings, name=f"{role} {name}", inbox_prefix=prefix)
    bus = await unless_stopped(stop, connecting)
    if bus is None:
        return 0
    returning = asyncio.create_task(return_freed_memory_regularly())
    try:
        await work(bus)
    finally:
        returning.cancel()
        await bus.close()
    return 0


def run_service(work: Callable[[StopSignal], Awaitable[int]]) -> int:
    """Run `work` until it returns its exit status.

    SIGTERM and SIGINT request a stop; a second signal exits immediately.
    """

    async def supervise() -> int:
        stop = StopSignal()
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if stop.requested:
                os._exit(130)
            stop.request()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        if os.environ.pop(PARENT_VARIABLE, None) == "1":
            _watch_parent(loop, stop)
        return await work(stop)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(supervise())


def _watch_parent(loop: asyncio.AbstractEventLoop, stop: StopSignal) -> None:
    descriptor = sys.stdin.fileno()

    def on_readable() -> None:
        if not os.read(descriptor, 1024):
            loop.remove_reader(descriptor)
            logger.warning("the parent process exited; stopping")
            stop.request(immediate=True)

    loop.add_reader(descriptor, on_readable)
