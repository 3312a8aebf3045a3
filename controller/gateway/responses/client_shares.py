"""How much of the store each client uses, so that one client cannot fill it. Without I/O.

A gateway counts what it has stored itself since it started: several gateways, and one that was
restarted, give a client its share again. What all clients may store together is JetStream's limit.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.ids import ClientName

LEAST_BYTES = 1024
"""What a response counts at least, for its metadata. They stay when it is deleted, until it would
have expired."""

_MAX_DELETED = 256
"""So many responses are deleted for another one at most: to delete the thousands that a share may
have takes longer than a client waits."""


class Reservation(NamedTuple):
    """`deleted` are the ids of responses that must be deleted, also if the new one does not fit."""

    fits: bool
    deleted: list[str]


@dataclass(slots=True)
class _Entry:
    response_id: str
    size_bytes: int
    stored_at: float


@dataclass(slots=True)
class _Usage:
    """The responses of one client, oldest first; `by_id` those that are not deleted."""

    size_bytes: int = 0
    entries: deque[_Entry] = field(default_factory=deque)
    by_id: dict[str, _Entry] = field(default_factory=dict)


class ClientShares:
    """
    Args:
        max_bytes: of the responses of one client.
        max_age_s: older responses have expired.
    """

    def __init__(self, max_bytes: int, max_age_s: float) -> None:
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._usages: dict[ClientName, _Usage] = {}

    def reserve(
        self, client: ClientName, response_id: str, size_bytes: int, now: float | None = None
    ) -> Reservation:
        """Count a response that is about to be stored, if it fits. The oldest ones of the client
        make room for it; of many small ones not all at once: later ones fit then.

        Args:
            now: on the monotonic clock.
        """
        moment = time.monotonic() if now is None else now
        usage = self._usages.setdefault(client, _Usage())
        self._expire(usage, moment)
        size_bytes = max(size_bytes, LEAST_BYTES)
        excess = usage.size_bytes + size_bytes - self._max_bytes
        if excess > usage.size_bytes - LEAST_BYTES * len(usage.entries):  # also without all others
            return Reservation(False, [])
        deleted: list[str] = []
        while excess > 0:
            if len(deleted) == _MAX_DELETED:
                return Reservation(False, deleted)
            oldest = next(iter(usage.by_id.values()))
            excess -= oldest.size_bytes - LEAST_BYTES
            deleted.append(oldest.response_id)
            self.release(client, oldest.response_id)
        entry = _Entry(response_id, size_bytes, moment)
        usage.entries.append(entry)
        usage.by_id[response_id] = entry
        usage.size_bytes += size_bytes
        return Reservation(True, deleted)

    def release(self, client: ClientName, response_id: str) -> None:
        """Note that a response is deleted. Does nothing if it is not counted."""
        usage = self._usages.get(client)
        entry = usage.by_id.pop(response_id, None) if usage is not None else None
        if usage is not None and entry is not None:
            usage.size_bytes -= entry.size_bytes - LEAST_BYTES
            entry.size_bytes = LEAST_BYTES

    def _expire(self, usage: _Usage, now: float) -> None:
        while usage.entries and now - usage.entries[0].stored_at > self._max_age_s:
            entry = usage.entries.popleft()
            usage.by_id.pop(entry.response_id, None)
            usage.size_bytes -= entry.size_bytes
