"""The connections of a gateway: how many there may be, in all and of one address.

At a limit, a new connection takes the place of the one that has waited longest for its client:
connections that send nothing cannot lock out others, from whatever address they come. Only if all
are being answered is the new one refused.
"""

import ipaddress
from collections import Counter
from typing import Protocol

_MAX_REFUSED = 64
"""Refused connections that may still receive their error; more are closed without one."""
_SITE_BITS = 64
"""One IPv6 host can have every address of a network of this prefix length."""


class Connection(Protocol):
    """An open connection."""

    def abort(self) -> None:
        """Close the connection now and drop what has not been sent."""


class ConnectionTable:
    """
    Args:
        most: connections of all addresses together.
        most_per_address: connections of one IPv4 address, or one IPv6 network of 64 bits.
    """

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._addresses: dict[Connection, str] = {}
        self._counts: Counter[str] = Counter()
        self._waiting: dict[Connection, None] = {}  # the longest waiting first
        self._refused: set[Connection] = set()

    def admit(self, connection: Connection, host: str) -> str | None:
        """Count a connection, which waits for its client. It may take the place of another one,
        which is aborted. Return why there is no place; None if it was counted.

        Args:
            host: the client's address.
        """
        address = counted_address(host)
        if self._counts[address] >= self._most_per_address:
            if not self._close_longest_waiting(address):
                return f"one address has {self._most_per_address} connections here, the limit"
        elif len(self._addresses) >= self._most and not self._close_longest_waiting(None):
            return f"the gateway has {self._most} connections, its limit"
        self._addresses[connection] = address
        self._counts[address] += 1
        self._waiting[connection] = None
        return None

    def refuse(self, connection: Connection) -> bool:
        """Note a connection that gets an error only. Return whether it may wait for that."""
        if len(self._refused) >= _MAX_REFUSED:
            return False
        self._refused.add(connection)
        return True

    def set_waiting(self, connection: Connection, waits: bool) -> None:
        """Note whether a connection waits for its client; a refused one always does."""
        if not waits:
            self._waiting.pop(connection, None)
        elif connection not in self._waiting and connection in self._addresses:
            self._waiting[connection] = None

    def remove(self, connection: Connection) -> None:
        """Forget a connection that was closed. Does nothing if it is not known."""
        self._refused.discard(connection)
        self._waiting.pop(connection, None)
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def _close_longest_waiting(self, address: str | None) -> bool:
        """Abort the connection that has waited longest for its client; return whether there was
        one.

        Args:
            address: only of this address; None: of any.
        """
        for connection in self._waiting:
            if address is None or self._addresses[connection] == address:
                self.remove(connection)
                connection.abort()
                return True
        return False


def counted_address(host: str) -> str:
    """Return what is counted as one address: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), _SITE_BITS), strict=False))
