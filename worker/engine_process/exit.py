"""How an engine process exited, and what it was working on."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from worker.link.activity import EngineActivities, EngineActivity
from worker.link.frames import EXIT_AGENT_GONE

Cause = Literal["crash", "hang", "kill", "fault"]

_EXTERNAL_SIGNALS = (
    signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT
)  # fmt: skip
"""Signals that are sent from outside and not raised by a fault of the program."""

_CRASH = "Fatal Python error"
"""First words of faulthandler's report; the stacks of all threads follow."""
_IN_PYTHON = "Current thread"
"""First words of the stack of the crashed thread in that report, if it is a Python thread."""
_PREPARATION = "preparation.py"
_UNCAUGHT = ("what():", "libc++abi:")
"""First words of a C++ runtime's message about an uncaught exception."""


@dataclass(frozen=True, slots=True)
class UnexpectedEngineExit:
    """An exit of an engine that its agent did not request.

    Attributes:
        cause: a `crash`; a `hang` that the agent ended; a `kill` or SIGSTOP from outside; a `fault`
            of the link between engine and agent.
        reason: for people: signal or exit status, and the last message on standard error.
        work: the work that is to blame, as far as known. None after a kill or a fault, or if the
            engine was using no model.
        killed_at: the work that a kill interrupted.
    """

    cause: Cause
    reason: str
    work: EngineActivity | None = None
    killed_at: EngineActivity | None = None

    @classmethod
    def by_itself(
        cls, status: int, activity: EngineActivities, lines: Sequence[str]
    ) -> "UnexpectedEngineExit":
        """The process exited with this status (negative: a signal); `lines` are the last lines of
        its standard error."""
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        message = _last_message(lines)
        reason = f"{how}{': ' + message if message else ''}"
        if status == EXIT_AGENT_GONE:
            return cls("fault", reason)
        if -status in _EXTERNAL_SIGNALS:
            return cls("kill", reason, killed_at=activity.now)
        return cls("crash", reason, _at_fault(status, activity, lines))

    @classmethod
    def by_agent(
        cls, reason: str, activity: EngineActivities, *, stopped: bool, by_prompt: bool = False
    ) -> "UnexpectedEngineExit":
        """The agent killed the engine because it was silent, or worked too long on one thing: a
        hang, unless something outside had `stopped` its process. `by_prompt`: the preparation of a
        prompt is to blame, not what the engine's thread did."""
        if stopped:
            return cls("kill", reason, killed_at=activity.now)
        return cls("hang", reason, activity.prompt if by_prompt else activity.now)


def _at_fault(
    status: int, activity: EngineActivities, lines: Sequence[str]
) -> EngineActivity | None:
    """Return the work that crashed an engine.

    An exception that ends the process was raised on the engine's thread. A signal in Python code
    belongs to the engine's thread, too, unless it hit the thread that prepares prompts. A signal
    outside Python hit a thread of the device, which computes the step that was submitted first.
    """
    if status >= 0:
        return activity.now
    thread = _crashed_thread(lines)
    if thread is None:
        return activity.ahead or activity.now
    if any(_PREPARATION in line for line in thread):
        return activity.prompt
    return activity.now


def _crashed_thread(lines: Sequence[str]) -> list[str] | None:
    """Return the stack of the thread that crashed; None if it is not a Python thread."""
    begins = [n for n, line in enumerate(lines) if line.startswith(_IN_PYTHON)]
    if not begins:
        return None
    stack = []
    for line in lines[begins[-1] + 1 :]:
        if not line.startswith("  "):
            break
        stack.append(line)
    return stack


def _last_message(lines: Sequence[str]) -> str:
    messages = [line for line in lines if line.strip()]
    crashes = [line for line in messages if line.startswith(_CRASH)]
    uncaught = [line.strip() for line in messages if line.strip().startswith(_UNCAUGHT)]
    if crashes and uncaught:
        return f"{crashes[-1]}: {uncaught[-1]}"
    return (crashes or messages or [""])[-1]
