"""Steps at even times."""

import asyncio
from collections.abc import AsyncIterator


async def steps(per_s: float) -> AsyncIterator[None]:
    """For ever, so many a second, whatever each costs."""
    clock = asyncio.get_running_loop()
    due = clock.time()
    while True:
        due += 1 / per_s
        await asyncio.sleep(max(0.0, due - clock.time()))
        yield
