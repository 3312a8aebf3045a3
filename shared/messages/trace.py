"""The trace of a request, between the processes."""

import hashlib
from typing import Annotated

from pydantic import Field

from shared.codec import WireMessagePart

SpanId = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class TraceContext(WireMessagePart):
    """Where the spans of an attempt belong. The ids of other spans are derived from it, so that
    every process, also a later leader, knows them.

    Attributes:
        traceparent: W3C's format, with the id of the request's span; always sampled.
        parent_id: the client's span.
        tracestate: as the client sent it.
        since_ms: from acceptance to the start of this attempt, or of the current wait.
    """

    traceparent: Annotated[str, Field(pattern="^00-[0-9a-f]{32}-[0-9a-f]{16}-01$")]
    parent_id: SpanId | None = None
    tracestate: str | None = None
    since_ms: float = 0.0

    @property
    def trace_id(self) -> str:
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """The id of the request's span."""
        return self.traceparent[36:52]

    def attempt_id(self, attempt: int) -> str:
        """Return the id of an attempt's span."""
        return derived_span_id(self.span_id, str(attempt))


def derived_span_id(above: str, name: str) -> str:
    """Return the id of a span below another one; the same in every process."""
    digest = hashlib.blake2b(f"{above}\0{name}".encode(), digest_size=8).hexdigest()
    return digest if digest.strip("0") else "1".zfill(16)  # zero is no id
