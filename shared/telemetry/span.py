"""A span as data. Spans are created at their end, from moments that were noted before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

AttributeValue = str | int | float | bool | Sequence[str]
Attributes = Mapping[str, AttributeValue]


class SpanEvent(NamedTuple):
    """`at` is on the clock of `time.monotonic`."""

    name: str
    at: float
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Span:
    """
    Attributes:
        trace_id, span_id, parent_id: hexadecimal digits: 32, 16 and 16.
        started_at, ended_at: on the clock of `time.monotonic`.
        has_remote_parent: the parent is a client's span.
        error: the error code; None if there was no error.
        linked_ids: of other spans of the trace.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    started_at: float
    ended_at: float
    attributes: Attributes
    kind: Literal["server", "consumer", "producer", "internal"] = "internal"
    has_remote_parent: bool = False
    error: str | None = None
    events: Sequence[SpanEvent] = ()
    linked_ids: Sequence[str] = ()
    tracestate: str = ""
