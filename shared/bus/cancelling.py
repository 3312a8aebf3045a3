"""Cancellation while the NATS client waits."""

import asyncio
import contextlib
from collections.abc import Iterator


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
