"""An event loop with virtual time, in which parts of a program are processes that can be stopped,
resumed and killed.

Time advances only when no callback is ready. A context variable names the process of each callback,
and tasks inherit it, so the code under test need not know of processes. A stopped process runs
nothing until it is resumed; a killed one never runs again, whatever it was doing. This is
deterministic simulation testing, as Apple's FoundationDB and TigerBeetle do it: the real code in
one thread, repeatable from one seed.
"""

import asyncio
import contextlib
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from types import CoroutineType
from typing import Any, TypeVar, cast
from unittest import mock

T = TypeVar("T")

_MOST_TURNS = 1_000_000
_current: ContextVar["Process | None"] = ContextVar("process", default=None)


class Process:
    """What runs in `context`, and all that it starts.

    Attributes:
        stopped: as by SIGSTOP.
        killed: as by SIGKILL.
    """

    def __init__(self, loop: "SimulatedLoop") -> None:
        self.stopped = False
        self.killed = False
        self.context = Context()
        self.context.run(_current.set, self)
        self._loop = loop
        self._held: list[_Handle] = []

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in this process."""
        return self._loop.create_task(work, context=self.context)

    def stop(self) -> None:
        """Run nothing until `resume`."""
        self.stopped = True

    def resume(self) -> None:
        """Go on: with what arrived meanwhile first, then the timers, as a selector loop does."""
        self.stopped = False
        held, self._held = self._held, []
        self._loop.hold_ready(sorted(held, key=lambda handle: handle.when is not None))

    def kill(self) -> None:
        self.killed = True
        self._held.clear()

    def hold(self, handle: "_Handle") -> None:
        self._held.append(handle)


class _Handle:
    """A callback that is ready, or a timer; `when` of a timer is the time it is due."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "process", "when")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        when: float | None = None,
    ) -> None:
        self._callback, self._args = callback, args
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False
        self.when = when
        self.process = self._context.get(_current)

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def run(self) -> None:
        if not self._cancelled:
            self._context.run(self._callback, *self._args)


class SimulatedLoop:
    """As much of an event loop as programs need that do no I/O of their own.

    Attributes:
        problems: what nobody caught.
    """

    def __init__(self) -> None:
        self.problems: list[dict[str, Any]] = []
        self._now = 0.0
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._number = 0
        self._closed = False
        self._names = itertools.count(1)
        self._tasks: list[asyncio.Task[Any]] = []  # also those that nobody will ever wake

    @property
    def _itself(self) -> asyncio.AbstractEventLoop:
        return cast(asyncio.AbstractEventLoop, self)

    def process(self) -> Process:
        return Process(self)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run until a coroutine, which is no process's, has ended."""
        asyncio.events._set_running_loop(self._itself)
        try:
            with (
                mock.patch("time.monotonic", self.time),
                mock.patch("time.clock_gettime", lambda _: self._now),
                mock.patch("asyncio.all_tasks", tuple),  # which looks at those of all loops
                mock.patch("secrets.token_hex", self._new_name),
            ):
                task = self.create_task(work, context=Context())
                turns = 0
                while not task.done():
                    self._run_once()
                    turns += 1
                    if turns > _MOST_TURNS:
                        raise RuntimeError(f"busy for ever at {self._now:.3f} s")
                return task.result()
        finally:
            self._closed = True
            asyncio.events._set_running_loop(None)
            self._drop_tasks()

    def _new_name(self, size: int) -> str:
        """Instead of a random one, so that each run is the same."""
        return f"{next(self._names):0{2 * size}x}"

    def _drop_tasks(self) -> None:
        """Those that never end: of killed processes, mostly. Nothing of them shall run later."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if task.done() and getattr(task, "_log_traceback", False):  # nobody has looked at it
                self.problems.append({"message": f"a task failed: {task.exception()!r}"})
        for task in tasks:
            coroutine = task.get_coro()
            assert isinstance(coroutine, CoroutineType)
            while coroutine.cr_frame is not None:
                _close_innermost(coroutine)

    def _run_once(self) -> None:
        if not self._ready:
            if not self._timers:
                raise RuntimeError("nothing will ever happen again")
            self._now = max(self._now, self._timers[0][0])
            while self._timers and self._timers[0][0] <= self._now:
                self._ready.append(heapq.heappop(self._timers)[2])
        handle = self._ready.popleft()
        process = handle.process
        if process is None:
            handle.run()
        elif process.stopped and not process.killed:
            process.hold(handle)
        elif not process.killed:
            handle.run()

    def hold_ready(self, handles: list[_Handle]) -> None:
        self._ready.extend(handles)

    # What asyncio asks of a loop.

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> _Handle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> _Handle:
        self._number += 1
        handle = _Handle(callback, args, context, when)
        heapq.heappush(self._timers, (when, self._number, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._itself)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self._itself, name=name, context=context)
        self._tasks.append(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tasks of killed processes are never done; all else is a problem."""
        if "destroyed but it is pending" not in context.get("message", ""):
            self.problems.append(context)


def _close_innermost(coroutine: "CoroutineType[Any, Any, Any]") -> None:
    """From within: what awaits in a `finally` would be left behind by whoever awaited it."""
    innermost = coroutine
    while isinstance(inner := innermost.cr_await, CoroutineType) and inner.cr_frame is not None:
        innermost = inner
    with contextlib.suppress(BaseException):
        innermost.close()
