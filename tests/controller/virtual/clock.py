"""Time that passes only when nothing else is to be done, for all who ask for it."""

from collections.abc import Coroutine
from typing import Any

from tests.simulation.loop import SimulatedLoop


def run_in_virtual_time(life: Coroutine[Any, Any, None]) -> None:
    """Run in a loop of its own, in whose time the clocks of controllers and workers go.

    Raises:
        AssertionError: nobody caught an exception of a callback.
    """
    loop = SimulatedLoop()
    loop.run(life)
    assert not loop.problems, loop.problems
