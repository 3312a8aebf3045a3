"""The deadline of a connection. At each moment a connection is in exactly one phase, and each phase
has one deadline: no byte of the client, and none that it does not send or read, leaves a connection
without one. Pure functions over a connection's state."""

import math
from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """What a connection waits for."""

    CLOSING = "closing"
    """The client must read what is left; nothing more is read from it."""
    BLOCKED = "blocked"
    """The client must read: so much is unsent that the answer waits."""
    BODY = "body"
    """The client must send the rest of a body, be the request answered or not."""
    ANSWER = "answer"
    """The gateway must answer. Its handlers have deadlines of their own."""
    HEAD = "head"
    """The client must send the rest of a head."""
    IDLE = "idle"
    """The client may send another request."""


@dataclass(frozen=True, slots=True)
class ConnectionTimeouts:
    """How long each phase may last. `send_s` limits both BLOCKED and CLOSING."""

    head_s: float = 10.0
    body_s: float = 30.0
    send_s: float = 30.0
    idle_s: float = 75.0


@dataclass(slots=True)
class ConnectionState:
    """What is known of a connection. Moments are on the event loop's clock; None: it is not so.

    Attributes:
        idle_since: when the connection began, or its last answer ended.
        head_since: when the first byte of a head came that is not complete.
        body_since: when the request of an incomplete body was given to its handler.
        responding: a handler has not completed its response.
        blocked_since: when the transport asked for no more data.
        closing_since: when the gateway decided to close the connection.
    """

    idle_since: float
    head_since: float | None = None
    body_since: float | None = None
    responding: bool = False
    blocked_since: float | None = None
    closing_since: float | None = None


def deadline(state: ConnectionState, timeouts: ConnectionTimeouts) -> tuple[Phase, float]:
    """Return the phase of a connection, and when it ends; infinity for ANSWER."""
    if state.closing_since is not None:
        return Phase.CLOSING, state.closing_since + timeouts.send_s
    if state.blocked_since is not None:
        return Phase.BLOCKED, state.blocked_since + timeouts.send_s
    if state.body_since is not None:
        return Phase.BODY, state.body_since + timeouts.body_s
    if state.responding:
        return Phase.ANSWER, math.inf
    if state.head_since is not None:
        return Phase.HEAD, state.head_since + timeouts.head_s
    return Phase.IDLE, state.idle_since + timeouts.idle_s
