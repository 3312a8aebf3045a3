"""How an engine process ended, and what it was at."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from worker.link.activity import ActivityKind, EngineActivity
from worker.link.frames import EXIT_AGENT_GONE

Cause = Literal["crash", "hang", "kill", "fault"]

_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that no fault of a program raises."""

_CRASH = "Fatal Python error"
"""How faulthandler begins; the stacks of all threads follow."""
_IN_PYTHON = "Current thread"
"""How it begins the stack of the thread that crashed, where that is one of Python."""
_PREPARES = "preparation.py"
_UNCAUGHT = ("what():", "libc++abi:")
"""How the C++ runtimes begin to say which exception nobody caught."""


@dataclass(frozen=True, slots=True)
class EngineExit:
    """One end of an engine that its agent did not ask for.

    Attributes:
        cause: a `crash` of its own; a `hang`, which its agent ended; a `kill` or a stop that came
            from outside; a `fault` between it and its agent.
        reason: for people: signal or exit status, and its last words.
        work: whose fault it is, as far as that is known. None after a kill or a fault, or where it
            was busy with no model.
        killed_at: what a kill hit.
    """

    cause: Cause
    reason: str
    work: EngineActivity | None = None
    killed_at: EngineActivity | None = None

    @classmethod
    def by_itself(cls, status: int, activity: ActivityKind, lines: Sequence[str]) -> "EngineExit":
        """Its process ended, with this exit status (negative: a signal) and these last lines of
        its standard error."""
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        words = _last_words(lines)
        reason = f"{how}{': ' + words if words else ''}"
        if status == EXIT_AGENT_GONE:
            return cls("fault", reason)
        if -status in _OUTSIDE:
            return cls("kill", reason, killed_at=activity.now)
        return cls("crash", reason, _at_fault(status, activity, lines))

    @classmethod
    def by_agent(cls, reason: str, activity: ActivityKind, *, stopped: bool) -> "EngineExit":
        """Its agent killed it, for it hung; or somebody had `stopped` its process."""
        if stopped:
            return cls("kill", reason, killed_at=activity.now)
        return cls("hang", reason, activity.now)


def _at_fault(status: int, activity: ActivityKind, lines: Sequence[str]) -> EngineActivity | None:
    """What a crash is to be laid to. An exception that ends the process is one of the engine's
    thread. So is a signal in Python code, unless it hit the thread that prepares prompts; one
    outside Python hit a thread of the device, which computes the step it was asked for first."""
    if status >= 0:
        return activity.now
    thread = _crashed_thread(lines)
    if thread is None:
        return activity.ahead or activity.now
    if any(_PREPARES in line for line in thread):
        return activity.prompt
    return activity.now


def _crashed_thread(lines: Sequence[str]) -> list[str] | None:
    """The stack of the thread that crashed; None where it is not one of Python."""
    begins = [n for n, line in enumerate(lines) if line.startswith(_IN_PYTHON)]
    if not begins:
        return None
    stack = []
    for line in lines[begins[-1] + 1 :]:
        if not line.startswith("  "):
            break
        stack.append(line)
    return stack


def _last_words(lines: Sequence[str]) -> str:
    said = [line for line in lines if line.strip()]
    crashes = [line for line in said if line.startswith(_CRASH)]
    uncaught = [line.strip() for line in said if line.strip().startswith(_UNCAUGHT)]
    if crashes and uncaught:
        return f"{crashes[-1]}: {uncaught[-1]}"
    return (crashes or said or [""])[-1]
