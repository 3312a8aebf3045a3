"""Traces. Only `otlp` imports OpenTelemetry, and only a process with an endpoint imports `otlp`."""

from shared.telemetry.current_span import current_trace_headers
from shared.telemetry.span import Span, SpanEvent
from shared.telemetry.tracing import SpanStart, Tracer, check_installed, tracing

__all__ = [
    "Span", "SpanEvent", "SpanStart", "Tracer", "check_installed", "current_trace_headers",
    "tracing",
]  # fmt: skip
