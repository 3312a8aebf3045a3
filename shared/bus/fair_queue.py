"""Messages that wait for a handler, in turns between their senders."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_CLIENT_MESSAGES = 10_000
MAX_CLIENT_BYTES = 64 * 1024 * 1024
"""Of one client in one queue; what comes beyond is dropped, as it arrives."""
MAX_MESSAGES = 512 * 1024
MAX_BYTES = 128 * 1024 * 1024
"""Of all senders in one queue."""


class _Line(Generic[T]):
    """What one sender has sent: messages with their sizes."""

    __slots__ = ("client", "messages", "size")

    def __init__(self, client: str) -> None:
        self.client = client
        self.messages: deque[tuple[T, int]] = deque()
        self.size = 0


class FairQueue(Generic[T]):
    """A message of one sender waits for at most one message of each other sender that is ahead of
    it, however many those have sent. Messages of one sender stay in order."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line[T]] = {}  # none is empty
        self._turns: deque[_Line[T]] = deque()
        self._messages = 0
        self._bytes = 0

    def add(self, client: str, message: T, size: int) -> bool:
        """Add a message of `size` bytes; returns False if there is no space for it.

        Args:
            client: its sender; empty for a process of the cluster, which has no limit of its own.
        """
        if self._messages >= MAX_MESSAGES or self._bytes + size > MAX_BYTES:
            return False
        line = self._lines.get(client)
        if line is None:
            line = self._lines[client] = _Line(client)
            self._turns.append(line)
        elif client and (
            len(line.messages) >= MAX_CLIENT_MESSAGES or line.size + size > MAX_CLIENT_BYTES
        ):
            return False
        line.messages.append((message, size))
        line.size += size
        self._messages += 1
        self._bytes += size
        return True

    def take(self) -> T | None:
        """Remove and return the next message; None if there is none."""
        if not self._turns:
            return None
        line = self._turns[0]
        message, size = line.messages.popleft()
        self._messages -= 1
        self._bytes -= size
        line.size -= size
        if not line.messages:
            self._turns.popleft()
            del self._lines[line.client]
        else:
            self._turns.rotate(-1)
        return message
