"""Work that takes too long is interrupted, and nothing else is."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from worker.engine.time_limit import TimeLimit, TimeLimitExceeded

_LIMIT_S = 0.3
_WAIT_S = 60


class _Thread:
    """A thread with a limit, which does one thing after another."""

    def __init__(self) -> None:
        self.limit = TimeLimit(_LIMIT_S)
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.limit.start()
        while (work := self._work.get()) is not None:
            try:
                self._results.put(self.limit.run(work))
            except TimeLimitExceeded as error:
                self._results.put(error)

    def result(self, work: Callable[[], object]) -> object:
        self._work.put(work)
        return self._results.get(timeout=_WAIT_S)

    def end(self) -> None:
        self._work.put(None)
        self._thread.join(_WAIT_S)
        assert not self._thread.is_alive()


@pytest.fixture
def thread() -> Iterator[_Thread]:
    thread = _Thread()
    yield thread
    thread.end()


def _forever() -> None:
    while True:
        pass


def _nested_loops() -> str:
    text = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    return str(ImmutableSandboxedEnvironment().from_string(text).render())


def _swallows_all() -> None:
    while True:
        try:
            _forever()
        except Exception:
            continue


@pytest.mark.parametrize("work", [_forever, _nested_loops, _swallows_all])
def test_what_does_not_end_is_ended_each_time(thread: _Thread, work: Callable[[], object]) -> None:
    for _ in range(3):
        assert isinstance(thread.result(work), TimeLimitExceeded)
        assert thread.result(lambda: "done") == "done"


def test_what_is_done_in_time_is_never_interrupted(thread: _Thread) -> None:
    """Many short pieces of work, over several times the limit."""
    until = time.monotonic() + 5 * _LIMIT_S
    while time.monotonic() < until:
        assert thread.result(lambda: sum(range(1000))) == 499_500


def test_what_interrupts_other_work_has_its_own_time(thread: _Thread) -> None:
    def other() -> list[Any]:
        found: list[Any] = []
        try:
            thread.limit.run(_forever)
        except TimeLimitExceeded as error:
            found.append(error)
        until = time.monotonic() + 3 * _LIMIT_S
        while time.monotonic() < until:
            found[1:] = [thread.limit.run(lambda: 7)]
        return found

    def work() -> list[Any]:
        return thread.limit.suspended(other)

    result = thread.result(work)
    assert isinstance(result, list) and isinstance(result[0], TimeLimitExceeded)
    assert result[1] == 7


def test_time_that_others_took_does_not_count_and_its_own_still_does(thread: _Thread) -> None:
    def work() -> None:
        thread.limit.suspended(lambda: time.sleep(3 * _LIMIT_S))
        _forever()

    assert isinstance(thread.result(work), TimeLimitExceeded)
