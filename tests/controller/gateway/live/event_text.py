"""Server-sent events, as a viewer reads them."""

import json
from typing import Any

Event = tuple[str, dict[str, Any]]


def parsed(text: bytes) -> list[Event]:
    """The events in some bytes, in their order; each must be one line of JSON."""
    found = []
    for block in text.split(b"\n\n")[:-1]:
        if block.startswith(b":"):
            continue
        name, data = block.split(b"\n")
        assert name.startswith(b"event: ") and data.startswith(b"data: "), block
        found.append((name.removeprefix(b"event: ").decode(), json.loads(data[6:])))
    return found


def only(text: bytes) -> dict[str, Any]:
    """The value of the one event in some bytes."""
    ((_, value),) = parsed(text)
    return value


class TableCopy:
    """A viewer's copy of a table.

    Attributes:
        extra: the further fields of the last event.
    """

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.extra: dict[str, Any] = {}

    def apply(self, event: dict[str, Any]) -> None:
        if event["whole"]:
            assert event["removed"] == []
            self.rows = {}
        for key in event["removed"]:
            self.rows.pop(key, None)  # a row that came and went meanwhile
        self.rows |= {row["key"]: row for row in event["rows"]}
        self.extra = {
            name: value for name, value in event.items() if name not in ("whole", "rows", "removed")
        }
