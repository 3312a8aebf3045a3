"""What is remembered for clients, up to a limit for all. A plain data structure."""

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Generic, TypeVar

from shared.ids import ClientName

V = TypeVar("V")


class FairLru(Generic[V]):
    """Values by client and a name that the client chose. Beyond the limit the client that has most
    loses the value that was set least recently: no client displaces what another one has. All
    methods take the same time, however many clients there are."""

    def __init__(self, max_values: int) -> None:
        self._max_values = max_values
        self._by_client: dict[ClientName, OrderedDict[str, V]] = {}
        self._by_count: defaultdict[int, dict[ClientName, None]] = defaultdict(dict)
        self._largest = 0  # number of values of one client
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def get(self, key: tuple[ClientName, str]) -> V | None:
        client, name = key
        values = self._by_client.get(client)
        return values.get(name) if values is not None else None

    def set(self, key: tuple[ClientName, str], value: V) -> V | None:
        """Set a value; returns the one before."""
        client, name = key
        values = self._by_client.setdefault(client, OrderedDict())
        before = values.pop(name, None)
        values[name] = value
        if before is None:
            self._resized(client, len(values) - 1, len(values))
        if self._total > self._max_values:
            self._forget_one()
        return before

    def values(self) -> Iterator[V]:
        """Yield the values of one client after the other, each in the order in which they were
        set."""
        for values in self._by_client.values():
            yield from values.values()

    def _forget_one(self) -> None:
        client = next(iter(self._by_count[self._largest]))
        values = self._by_client[client]
        values.popitem(last=False)
        self._resized(client, len(values) + 1, len(values))

    def _resized(self, client: ClientName, before: int, now: int) -> None:
        """Note that a client has one value more, or one less."""
        self._total += now - before
        self._by_count[before].pop(client, None)
        if not self._by_count[before]:
            del self._by_count[before]
        if now:
            self._by_count[now][client] = None
        else:
            del self._by_client[client]
        if now > self._largest or self._largest not in self._by_count:
            self._largest = now
