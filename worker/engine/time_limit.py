"""A time limit for Python code of other people: the chat templates of models.

Jinja's sandbox bounds `range`, but neither nested loops nor what a template does with the messages.
An exception is raised in the thread that takes too long, between two bytecodes. A call of native
code that does not return is not interrupted: the agent ends the engine then.
"""

import ctypes
import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_CHECK_INTERVAL_S = 0.25
_REPEAT_S = 1.0


class TimeLimitExceeded(BaseException):
    """Raised in work that took too long. Not an `Exception`, so that the work does not catch it."""


class TimeLimit:
    """Limits the time of the work of one thread."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._lock = threading.Lock()
        self._deadlines: list[float] = []  # of the work, and of that which interrupts it
        self._thread = 0

    def start(self) -> None:
        """Limit the work of the calling thread from now on."""
        self._thread = threading.get_ident()
        threading.Thread(target=self._watch, name="time-limit", daemon=True).start()

    def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`.

        Raises:
            TimeLimitExceeded: it took too long.
        """
        return self._run(work, self.limit_s)

    def suspended(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which interrupts other work: its time does not count. It may
        call `run` again."""
        return self._run(work, math.inf)

    def _run(self, work: Callable[[], T], limit_s: float) -> T:
        began_at, depth = time.monotonic(), len(self._deadlines)
        try:
            with self._lock:
                _raise_in(self._thread, None)  # what was meant for the interrupted work comes again
                self._deadlines.append(began_at + limit_s)
            try:
                return work()
            finally:
                self._leave(depth, began_at)
        except TimeLimitExceeded:
            self._leave(depth, began_at)  # it may have interrupted just that
            raise

    def _leave(self, depth: int, began_at: float) -> None:
        """After this no exception is raised any more for the work at this depth."""
        with self._lock:
            if len(self._deadlines) > depth:
                del self._deadlines[depth:]
                took_s = time.monotonic() - began_at
                self._deadlines = [deadline + took_s for deadline in self._deadlines]
            _raise_in(self._thread, None)

    def _watch(self) -> None:
        while True:
            time.sleep(_CHECK_INTERVAL_S)
            with self._lock:
                now = time.monotonic()
                if self._deadlines and now >= self._deadlines[-1]:
                    self._deadlines[-1] = now + _REPEAT_S
                    _raise_in(self._thread, TimeLimitExceeded)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an exception in a thread as soon as it runs Python code; None takes back one that was
    not raised yet."""
    pointer = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), pointer)
