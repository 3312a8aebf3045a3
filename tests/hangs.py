"""A test that hangs says where: its threads and asyncio tasks, as they are when its time is over.

pytest-timeout would end the process with what only its own terminal sees, which a process of
pytest-xdist does not have, and knows nothing of tasks.
"""

import asyncio
import faulthandler
import gc
import inspect
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

_TIMER = pytest.StashKey[threading.Timer]()


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    timer = threading.Timer(settings.timeout, _end_process, (item,))
    timer.daemon = True
    timer.start()
    item.stash[_TIMER] = timer
    return True  # instead of pytest-timeout's own


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    if (timer := item.stash.get(_TIMER, None)) is not None:
        timer.cancel()
    return True


def _waits_at(task: "asyncio.Task[object]") -> Iterator[str]:
    """Where a task stands, the outermost call first; its own `print_stack` shows only that."""
    waiting: Any = task.get_coro()
    while (frame := getattr(waiting, "cr_frame", getattr(waiting, "ag_frame", None))) is not None:
        yield f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"
        waiting = getattr(waiting, "cr_await", getattr(waiting, "ag_await", None))
        if type(waiting).__name__.startswith("async_generator_"):  # a fixture's next step
            waiting = next(filter(inspect.isasyncgen, gc.get_referents(waiting)), waiting)
    if waiting is not None:
        yield repr(waiting)


def _end_process(item: pytest.Item) -> None:
    """No exception would do: what hangs may swallow it."""
    stderr = sys.__stderr__
    assert stderr is not None
    try:
        capture = item.config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture()
        print(f"\n{item.nodeid} hangs:", file=stderr, flush=True)
        faulthandler.dump_traceback(stderr)
        for task in [thing for thing in gc.get_objects() if isinstance(thing, asyncio.Task)]:
            if not task.done():
                print(f"{task.get_name()}:", *_waits_at(task), sep="\n  ", file=stderr)
    finally:
        stderr.flush()
        os._exit(1)
