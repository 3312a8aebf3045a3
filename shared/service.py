"""What every long-running command does around its work: loop, signals, parent's death."""

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
from shared.settings.nats import NatsSettings

T = TypeVar("T")

logger = logging.getLogger(__name__)

PARENT_VARIABLE = "CLUSTER_PARENT_PIPE"
"""Set to 1 by a parent that holds the other end of our stdin: its end means the parent died."""


class StopRequest:
    """Set when the process shall end. `in_haste`: nobody waits for a graceful end."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.in_haste = False

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def request(self, *, in_haste: bool = False) -> None:
        self.in_haste = self.in_haste or in_haste
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


async def unless_stopped(stop: StopRequest, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None when a stop was requested before it was there."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        stopped.cancel()
        task.cancel()


async def run_on_bus(
    stop: StopRequest,
    settings: NatsSettings,
    role: str,
    name: str,
    work: Callable[[Bus], Awaitable[None]],
) -> int:
    """Connect, however long that takes, run `work`, and close; 0 also when stopped before.

    Args:
        role: worker, controller or gateway; answers come to inboxes of that role and name.
    """
    prefix = subjects.inbox_prefix(role, name)
    connecting = Bus.connect(settings, name=f"{role} {name}", inbox_prefix=prefix)
    bus = await unless_stopped(stop, connecting)
    if bus is None:
        return 0
    try:
        await work(bus)
    finally:
        await bus.close()
    return 0


def run_service(work: Callable[[StopRequest], Awaitable[int]]) -> int:
    """Run `work` until it returns its exit status.

    SIGTERM and SIGINT ask it to stop; a second one ends the process at once.
    """

    async def supervise() -> int:
        stop = StopRequest()
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


def _watch_parent(loop: asyncio.AbstractEventLoop, stop: StopRequest) -> None:
    descriptor = sys.stdin.fileno()

    def on_readable() -> None:
        if not os.read(descriptor, 1024):
            loop.remove_reader(descriptor)
            logger.warning("the parent process is gone; stopping")
            stop.request(in_haste=True)

    loop.add_reader(descriptor, on_readable)
