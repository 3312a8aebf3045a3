"""Wait for a condition on state that one event loop changes."""

import asyncio
from collections.abc import Callable


class ChangeNotifier:
    """Code that changes the state calls `notify`, which makes each waiter check its condition."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition` holds; immediately if it already does."""
        while not condition():
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
