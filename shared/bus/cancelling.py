"""Being cancelled while the NATS client waits."""

import asyncio
import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def cancellable() -> Iterator[None]:
    """Around calls of the client that wait with `asyncio.wait_for`: up to Python 3.11 it forgets
    a cancellation that comes together with what it waits for, and its task would go on."""
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
