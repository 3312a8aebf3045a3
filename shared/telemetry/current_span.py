"""The current span of a program that uses OpenTelemetry itself."""

import sys
from typing import Any

from shared.telemetry.trace_headers import trace_headers


def current_trace_headers() -> dict[str, str] | None:
    """Return the headers that continue the current trace of this process; None if there is none.
    OpenTelemetry is not imported: a program without it has no span."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return trace_headers(
        f"{context.trace_id:032x}",
        f"{context.span_id:016x}",
        sampled=context.trace_flags.sampled,
        tracestate=context.trace_state.to_header(),
    )
