"""Spans sent to a collector with OpenTelemetry's SDK, from a thread: OTLP over HTTP."""

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from opentelemetry import context as current_context
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from shared.telemetry.span import Span
from shared.telemetry.tracing import SpanStart
from shared.version import VERSION

logger = logging.getLogger(__name__)

_MAX_QUEUED_SPANS = 8192
"""Above it the oldest are dropped."""
_BATCH_SPANS = 512
_SEND_EVERY_MS = 1000
_SEND_TIMEOUT_S = 5.0
_CLOSE_S = 2.0
_CLOCK_TRIES = 5
_CLOCK_GAP_NS = 20_000
_KINDS = {
    "server": SpanKind.SERVER,
    "consumer": SpanKind.CONSUMER,
    "producer": SpanKind.PRODUCER,
    "internal": SpanKind.INTERNAL,
}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_NO_ERROR = Status(StatusCode.UNSET)


class OtlpExporter:
    """Queues spans, and sends them from a thread of its own.

    Args:
        url: of the collector, with its path.
        service, instance: `service.name` and `service.instance.id` of the spans.
    """

    def __init__(self, url: str, headers: Mapping[str, str], service: str, instance: str) -> None:
        # The SDK logs each failure, retry and dropped span; `_LoggedOnce` says so once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        self._resource = Resource(
            {
                "service.name": service,
                "service.instance.id": instance,
                "service.version": VERSION,
            }
        )
        self._scope = InstrumentationScope("mlx-nats-cluster", VERSION)
        sender = OTLPSpanExporter(endpoint=url, headers=dict(headers), timeout=_SEND_TIMEOUT_S)
        self._processor = BatchSpanProcessor(
            _LoggedOnce(sender, url),
            max_queue_size=_MAX_QUEUED_SPANS,
            schedule_delay_millis=_SEND_EVERY_MS,
            max_export_batch_size=_BATCH_SPANS,
        )

    def put(self, span: Span) -> None:
        """Queue a span; its times become those of the wall clock."""
        offset_ns = _wall_offset_ns()
        parent = None
        if span.parent_id is not None:
            parent = _context(span, span.parent_id, is_remote=span.has_remote_parent)
        attributes = dict(span.attributes)
        if span.error is not None:
            attributes["error.type"] = span.error
        self._processor.on_end(
            ReadableSpan(
                span.name,
                _context(span, span.span_id),
                parent,
                self._resource,
                attributes,
                kind=_KINDS[span.kind],
                status=_NO_ERROR if span.error is None else _error_status(span.error),
                events=[
                    Event(each.name, each.attributes, _wall_ns(each.at, offset_ns))
                    for each in span.events
                ],
                links=[Link(_context(span, linked)) for linked in span.linked_ids],
                start_time=_wall_ns(span.started_at, offset_ns),
                end_time=_wall_ns(span.ended_at, offset_ns),
                instrumentation_scope=self._scope,
            )
        )

    async def close(self) -> None:
        """Send what is queued, for at most 2 s."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def close() -> None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(closed.set)

        # No executor: its threads keep a process from ending.
        threading.Thread(target=close, name="telemetry-close", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await closed.wait()


class _LoggedOnce(SpanExporter):
    """An exporter whose first failure is logged, and its recovery."""

    def __init__(self, sender: SpanExporter, url: str) -> None:
        self._sender = sender
        self._url = url
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._sender.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            logger.warning("traces cannot be sent to %s; they are dropped", self._url)
        elif self._failing and not failed:
            logger.info("traces are sent to %s again", self._url)
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._sender.shutdown()


@contextlib.contextmanager
def as_current_span(span: SpanStart) -> Iterator[None]:
    """Make a span the current one of OpenTelemetry."""
    flags = _SAMPLED if span.sampled else TraceFlags(TraceFlags.DEFAULT)
    own = SpanContext(
        int(span.trace_id, 16),
        int(span.span_id, 16),
        is_remote=False,
        trace_flags=flags,
        trace_state=_trace_state(span.tracestate),
    )
    token = current_context.attach(trace.set_span_in_context(NonRecordingSpan(own)))
    try:
        yield
    finally:
        current_context.detach(token)


def _context(span: Span, span_id: str, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(
        int(span.trace_id, 16),
        int(span_id, 16),
        is_remote=is_remote,
        trace_flags=_SAMPLED,
        trace_state=_trace_state(span.tracestate),
    )


@functools.lru_cache(64)
def _trace_state(value: str) -> TraceState:
    return TraceState.from_header([value]) if value else TraceState()


@functools.lru_cache(64)
def _error_status(code: str) -> Status:
    return Status(StatusCode.ERROR, code)


def _wall_offset_ns() -> int:
    """Return what the wall clock is ahead of the monotonic one, measured without an interruption
    between the two if possible."""
    best = (2**63, 0)
    for _ in range(_CLOCK_TRIES):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        best = min(best, (after - before, wall - before))
        if best[0] < _CLOCK_GAP_NS:
            break
    return best[1]


def _wall_ns(moment: float, offset_ns: int) -> int:
    return int(moment * 1e9) + offset_ns
