"""How an engine ended, from what is left of it."""

import signal

import pytest

from shared.ids import ModelId
from worker.engine_process.exit import UnexpectedEngineExit
from worker.link.activity import EngineActivities, EngineActivity
from worker.link.frames import EXIT_AGENT_GONE

_NOW = EngineActivity("step", ModelId("now"), (1,))
_AHEAD = EngineActivity("step", ModelId("ahead"), (2,))
_PROMPT = EngineActivity("prefill", ModelId("prompt"), (3,))
_ALL = EngineActivities(_NOW, _AHEAD, _PROMPT)

_TRACEBACK = ["Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: no"]
_IN_THE_LOOP = [
    "Fatal Python error: Aborted",
    "",
    "Thread 0x01 (most recent call first):",
    '  File "/x/worker/engine/preparation.py", line 80 in _run',
    "",
    "Current thread 0x02 (most recent call first):",
    '  File "/x/model.py", line 7 in __call__',
    '  File "/x/worker/engine/loop.py", line 9 in run',
    "",
    "Extension modules: numpy (total: 1)",
]
_IN_A_PROMPT = [
    "Fatal Python error: Segmentation fault",
    "",
    "Current thread 0x01 (most recent call first):",
    '  File "/x/worker/engine/preparation.py", line 80 in _run',
    "",
    "Thread 0x02 (most recent call first):",
    '  File "/x/worker/engine/loop.py", line 9 in run',
]
_ON_THE_DEVICE = [
    "libc++abi: terminating due to uncaught exception of type std::runtime_error: no memory",
    "Fatal Python error: Aborted",
    "",
    "Thread 0x02 (most recent call first):",
    '  File "/x/worker/engine/loop.py", line 9 in run',
]


@pytest.mark.parametrize(
    ("status", "lines", "work"),
    [
        (1, _TRACEBACK, _NOW),
        (0, [], _NOW),
        (-signal.SIGABRT, _IN_THE_LOOP, _NOW),
        (-signal.SIGSEGV, _IN_A_PROMPT, _PROMPT),
        (-signal.SIGABRT, _ON_THE_DEVICE, _AHEAD),
    ],
    ids=["exception", "exit", "crash in the loop", "crash in a prompt", "crash on the device"],
)
def test_a_crash_is_laid_to_what_the_thread_did_that_crashed(
    status: int, lines: list[str], work: EngineActivity
) -> None:
    end = UnexpectedEngineExit.by_itself(status, _ALL, lines)
    assert (end.cause, end.work, end.killed_at) == ("crash", work, None)


def test_a_crash_on_the_device_with_nothing_ahead_is_laid_to_what_is_waited_for() -> None:
    activity = EngineActivities(now=_NOW)
    assert UnexpectedEngineExit.by_itself(-signal.SIGABRT, activity, _ON_THE_DEVICE).work == _NOW


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_from_outside_is_laid_to_nobody(number: int) -> None:
    end = UnexpectedEngineExit.by_itself(-number, _ALL, [])
    assert (end.cause, end.work, end.killed_at) == ("kill", None, _NOW)
    assert end.reason == f"signal {int(number)}"


def test_a_hang_is_laid_to_what_it_hangs_in_unless_somebody_stopped_the_process() -> None:
    hung = UnexpectedEngineExit.by_agent("no message", _ALL, stopped=False)
    assert (hung.cause, hung.work) == ("hang", _NOW)
    stopped = UnexpectedEngineExit.by_agent("no message", _ALL, stopped=True)
    assert (stopped.cause, stopped.work) == ("kill", None)


def test_a_hang_in_the_preparation_of_a_prompt_is_laid_to_that_prompt() -> None:
    hung = UnexpectedEngineExit.by_agent("no message", _ALL, stopped=False, by_prompt=True)
    assert (hung.cause, hung.work) == ("hang", _ALL.prompt)


def test_an_engine_that_could_not_reach_its_agent_is_nobodys_fault() -> None:
    assert UnexpectedEngineExit.by_itself(EXIT_AGENT_GONE, _ALL, []).work is None


@pytest.mark.parametrize(
    ("status", "lines", "reason"),
    [
        (1, _TRACEBACK, "exit status 1: ValueError: no"),
        (0, [], "exit status 0"),
        (-signal.SIGABRT, _IN_THE_LOOP, "signal 6: Fatal Python error: Aborted"),
        (
            -signal.SIGABRT,
            _ON_THE_DEVICE,
            "signal 6: Fatal Python error: Aborted: libc++abi: terminating due to uncaught "
            "exception of type std::runtime_error: no memory",
        ),
    ],
)
def test_the_reason_has_its_last_words(status: int, lines: list[str], reason: str) -> None:
    assert UnexpectedEngineExit.by_itself(status, _ALL, lines).reason == reason
