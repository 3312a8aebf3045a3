"""Waiting for a condition over state that one event loop changes."""

import asyncio
from collections.abc import Callable


class Changes:
    """Whoever changes the state calls `notify`; whoever waits is checked again then."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition` holds (at once where it does)."""
        while not condition():
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
