"""Asyncio tasks: a failure is logged, a cancellation is never lost."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator

logger = logging.getLogger(__name__)


class Tasks:
    """Runs coroutines in the background, and logs those that fail."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a coroutine; returns its task, which may be cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    async def end(self) -> None:
        """Cancel the running tasks, and wait until they are done."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task failed", exc_info=error)


@contextlib.contextmanager
def cancellable() -> Iterator[None]:
    """Raise a cancellation that the wrapped call of the client has lost: up to Python 3.11
    `asyncio.wait_for` drops one that arrives together with the result, and the task would go on."""
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
