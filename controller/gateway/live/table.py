"""Rows that viewers follow: each gets those that changed since its last event."""

from collections.abc import Mapping
from typing import Any

import orjson
from pydantic_core import to_json

Row = Mapping[str, Any]

_MAX_REMOVED = 2000
"""Remembered keys of removed rows; a viewer that is further behind gets all rows."""


class VersionedValue:
    """A value that is sent whole whenever it changed."""

    def __init__(self, name: str) -> None:
        self.version = 0
        self._name = name
        self._body = b""

    def update(self, value: Mapping[str, Any]) -> None:
        """Set the current value."""
        body = _encode(value)
        if body != self._body:
            self._body = body
            self.version += 1

    def since(self, version: int) -> bytes:
        """Return the event for a viewer that has this version; empty if it is the current one."""
        return b"" if version == self.version else event(self._name, self._body)


class TableEvents:
    """Rows by key, with the version in which each one changed last.

    Attributes:
        version: 0 before the first update.
    """

    def __init__(self, name: str) -> None:
        self.version = 0
        self._name = name
        self._rows: dict[str, Row] = {}
        self._changed: dict[str, int] = {}
        self._removed: dict[str, int] = {}
        self._forgotten = 0  # the highest version of a removal that is not remembered
        self._extra: Mapping[str, Any] = {}
        self._encoded: dict[int, bytes] = {}

    def update(self, rows: Mapping[str, Row], extra: Mapping[str, Any] | None = None) -> None:
        """Set all rows, and further fields of the event."""
        extra = extra or {}
        changed = [key for key, row in rows.items() if self._rows.get(key) != row]
        removed = [key for key in self._rows if key not in rows]
        if self.version and not changed and not removed and extra == self._extra:
            return
        self.version += 1
        self._rows, self._extra = dict(rows), extra
        for key in changed:
            self._changed[key] = self.version
            self._removed.pop(key, None)
        for key in removed:
            del self._changed[key]
            self._removed[key] = self.version
        while len(self._removed) > _MAX_REMOVED:
            oldest = next(iter(self._removed))
            self._forgotten = max(self._forgotten, self._removed.pop(oldest))
        self._encoded.clear()

    def since(self, version: int) -> bytes:
        """Return the event for a viewer that has this version; empty if it is the current one."""
        if version == self.version:
            return b""
        if version not in self._encoded:
            self._encoded[version] = event(self._name, _encode(self._delta(version)))
        return self._encoded[version]

    def _delta(self, version: int) -> dict[str, Any]:
        whole = version == 0 or version < self._forgotten
        rows = [
            {"key": key, **row}
            for key, row in self._rows.items()
            if whole or self._changed[key] > version
        ]
        removed = [] if whole else [key for key, at in self._removed.items() if at > version]
        return {"whole": whole, "rows": rows, "removed": removed, **self._extra}


def event(name: str, body: bytes) -> bytes:
    """Return a server-sent event. JSON has no line breaks outside of strings, and none in them."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), body)


def _encode(value: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # a sum of what workers report may have more than 64 bits
        return to_json(value, inf_nan_mode="null")
