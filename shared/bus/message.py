"""What a handler gets."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple


class BusMessage(NamedTuple):
    """One message as it arrived; `reply` is empty where no answer is asked for, and where who asks
    names a subject that is no inbox.

    `no_responders` marks the server's own 503: nobody subscribes to what was published with
    this inbox as its reply.
    """

    subject: str
    reply: str
    payload: bytes
    no_responders: bool = False


Handler = Callable[[BusMessage], Awaitable[None]]
"""Called for one message after another of a subscription: hand long work to a task."""
