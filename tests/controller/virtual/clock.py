"""Time that passes only when nothing else is to be done, for all who ask for it."""

import asyncio
from collections.abc import Coroutine
from typing import Any
from unittest import mock

from tests.worker.virtual_time import VirtualTimeLoop


def run_in_virtual_time(life: Coroutine[Any, Any, None]) -> None:
    """Run in a loop of its own, in whose time the clocks of controllers and workers go."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        now = runner.get_loop().time
        with (
            mock.patch("time.monotonic", now),
            mock.patch("time.clock_gettime", lambda _: now()),
        ):
            runner.run(life)
