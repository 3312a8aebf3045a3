"""The headers of W3C Trace Context: what a client sends, and what is sent on.

https://www.w3.org/TR/trace-context/
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_FORMAT = re.compile("([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MAX_TRACEPARENT = 128
_MAX_TRACESTATE = 512
_ENTRY = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{1,256}")


class RemoteSpan(NamedTuple):
    """The span of a client."""

    trace_id: str
    span_id: str
    sampled: bool
    tracestate: str


def remote_span(headers: Mapping[str, str] | None) -> RemoteSpan | None:
    """Return the span that the headers of a message name; None if there is none, or its header is
    malformed. A malformed or too long `tracestate` is dropped."""
    value = _value(headers, TRACEPARENT) if headers else None
    if headers is None or value is None or len(value) > _MAX_TRACEPARENT:
        return None
    found = _FORMAT.fullmatch(value.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    state = _tracestate(_value(headers, TRACESTATE) or "")
    return RemoteSpan(trace_id, span_id, bool(int(flags, 16) & 1), state)


def trace_headers(
    trace_id: str, span_id: str, *, sampled: bool, tracestate: str = ""
) -> dict[str, str]:
    headers = {TRACEPARENT: f"00-{trace_id}-{span_id}-{int(sampled):02x}"}
    return headers | ({TRACESTATE: tracestate} if tracestate else {})


def _value(headers: Mapping[str, str], name: str) -> str | None:
    """Return the value of a header; some clients of NATS write it with a capital."""
    return headers.get(name) or headers.get(name.capitalize())


def _tracestate(value: str) -> str:
    if len(value) > _MAX_TRACESTATE:
        return ""
    entries = [entry for entry in (each.strip() for each in value.split(",")) if entry]
    keys = {entry.partition("=")[0] for entry in entries}
    is_valid = len(entries) <= 32 and len(keys) == len(entries)
    return ",".join(entries) if is_valid and all(map(_ENTRY.fullmatch, entries)) else ""
