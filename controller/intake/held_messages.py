"""Messages of clients that wait until their controller leads. Plain data."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from shared.bus import IncomingMessage

MAX_HELD = 10_000
MAX_HELD_BYTES = 128 * 1024 * 1024
_OVERHEAD_BYTES = 1024

H = TypeVar("H")


class HeldMessage(NamedTuple, Generic[H]):
    """`named`: its body has a request id."""

    held_at: float
    handler: H
    message: IncomingMessage
    client: str
    named: bool

    @property
    def size_bytes(self) -> int:
        return len(self.message.payload) + _OVERHEAD_BYTES


class HeldMessages(Generic[H]):
    """In the order of arrival. If there are too many, or they have too many bytes, the client that
    has most loses its oldest message: clients get no answer, and publish again."""

    def __init__(self, max_bytes: int = MAX_HELD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._messages: OrderedDict[int, HeldMessage[H]] = OrderedDict()
        self._of_client: dict[str, deque[int]] = {}
        self._bytes: Counter[str] = Counter()
        self._total_bytes = 0
        self._next = 0

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[HeldMessage[H]]:
        return iter(self._messages.values())

    def add(self, held: HeldMessage[H]) -> None:
        self._messages[self._next] = held
        self._of_client.setdefault(held.client, deque()).append(self._next)
        self._bytes[held.client] += held.size_bytes
        self._total_bytes += held.size_bytes
        self._next += 1
        while len(self) > MAX_HELD:
            most = max(self._of_client, key=lambda client: len(self._of_client[client]))
            self._remove(self._of_client[most][0])
        while self._total_bytes > self._max_bytes:
            heaviest = max(self._bytes, key=lambda client: self._bytes[client])
            self._remove(self._of_client[heaviest][0])

    def pop(self) -> HeldMessage[H]:
        """Remove and return the oldest message; there must be one."""
        return self._remove(next(iter(self._messages)))

    def drop(self, is_dropped: Callable[[HeldMessage[H]], bool]) -> None:
        """Drop the messages for which `is_dropped` returns true."""
        for number, held in list(self._messages.items()):
            if is_dropped(held):
                self._remove(number)

    def drop_older_than(self, held_at: float) -> None:
        while self._messages and next(iter(self)).held_at < held_at:
            self.pop()

    def _remove(self, number: int) -> HeldMessage[H]:
        held = self._messages.pop(number)
        numbers = self._of_client[held.client]
        numbers.remove(number)
        self._bytes[held.client] -= held.size_bytes
        self._total_bytes -= held.size_bytes
        if not numbers:
            del self._of_client[held.client], self._bytes[held.client]
        return held
