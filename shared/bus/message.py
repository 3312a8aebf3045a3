"""The messages that a handler receives."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple


class IncomingMessage(NamedTuple):
    """A received message. `reply` is empty if the sender expects no reply, or names a subject that
    is not an inbox.

    `no_responders` marks the server's own 503: a message that was published with this inbox as
    its reply had no subscriber.
    """

    subject: str
    reply: str
    payload: bytes
    no_responders: bool = False


Handler = Callable[[IncomingMessage], Awaitable[None]]
"""Called for the messages of a subscription one after another: run long work in a task."""
