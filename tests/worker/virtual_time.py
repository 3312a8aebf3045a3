"""Time for which no test waits: a clock that is set by hand, and an event loop whose time passes
only when nothing else is to be done."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

_P = ParamSpec("_P")
_Ready = list[tuple[selectors.SelectorKey, int]]


class Clock:
    """Shows what it was set to last."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting, sets the clock to when the next timer is due."""

    now = 0.0

    def select(self, timeout: float | None = None) -> _Ready:
        if timeout is None or timeout <= 0:  # nothing but other threads can go on; or all can
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Here `asyncio.sleep` returns once all tasks wait, in the order of their timers."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Without a limit: threads live by another clock."""
        await super().shutdown_default_executor()


def in_virtual_time(function: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """Decorates a test that runs in a loop of its own.

    The loop of anyio's fixtures would not do: its runner lives as long as any fixture of the
    session that needs it, and gives that one loop to all modules, whatever loop they ask for.
    """

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(function(*args, **kwargs))

    return run
