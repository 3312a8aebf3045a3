"""The tracer of a process: begins traces, and passes on the spans that ended."""

import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

from shared.errors import SettingsError
from shared.settings.telemetry import TelemetrySettings
from shared.telemetry.span import Span
from shared.telemetry.trace_headers import remote_span

_RANDOM_BITS = 56
"""Of a trace id are random, at the end of the id: what every implementation samples by."""


@dataclass(frozen=True, slots=True)
class SpanStart:
    """A span that begins.

    Attributes:
        parent_id: a client's span, if the client sent one.
        sampled: whether spans of the trace are recorded.
    """

    trace_id: str
    span_id: str
    sampled: bool
    parent_id: str | None = None
    tracestate: str = ""


class Tracer:
    """
    Args:
        export: takes a span that ended; must not block.
        sample_ratio: of the traces that begin here.
        enter: makes a span the current one of OpenTelemetry.
    """

    def __init__(
        self,
        export: Callable[[Span], None],
        sample_ratio: float = 1.0,
        enter: Callable[[SpanStart], AbstractContextManager[object]] | None = None,
    ) -> None:
        self._export = export
        self._threshold = sample_ratio * 2**_RANDOM_BITS
        self._enter = enter

    def begin(self, headers: Mapping[str, str] | None) -> SpanStart:
        """Begin a span: in the trace that the headers of a message name, else in a new one."""
        span_id = f"{random.getrandbits(64) or 1:016x}"
        if (parent := remote_span(headers)) is not None:
            trace_id, parent_id, sampled, tracestate = parent
            return SpanStart(trace_id, span_id, sampled, parent_id, tracestate)
        number = random.getrandbits(128) or 1
        sampled = number % 2**_RANDOM_BITS < self._threshold
        return SpanStart(f"{number:032x}", span_id, sampled)

    def record(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self._export(span)

    def as_current(self, span: SpanStart) -> AbstractContextManager[object]:
        """Make a span the current one, so that the client library continues its trace."""
        return self._enter(span) if self._enter is not None else nullcontext()


def check_installed(settings: TelemetrySettings) -> None:
    """
    Raises:
        SettingsError: there is an endpoint, but OpenTelemetry is not installed.
    """
    if settings.traces_url is None:
        return
    try:
        from shared.telemetry.otlp import OtlpExporter  # noqa: F401
    except ImportError as error:
        raise SettingsError(
            "telemetry.otlp_endpoint: traces need OpenTelemetry: "
            f"pip install 'mlx-nats-cluster[telemetry]' ({error})",
            param="telemetry.otlp_endpoint",
        ) from None


@asynccontextmanager
async def tracing(
    settings: TelemetrySettings, service: str, instance: str
) -> AsyncIterator[Tracer | None]:
    """Yield the tracer of this process; None without an endpoint. At the end, spans that were not
    sent yet have 2 s.

    Args:
        service: controller, worker or gateway.
        instance: the id of this process.

    Raises:
        SettingsError: OpenTelemetry is not installed.
    """
    if settings.traces_url is None:
        yield None
        return
    check_installed(settings)
    from shared.telemetry.otlp import OtlpExporter, as_current_span

    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    exporter = OtlpExporter(settings.traces_url, headers, f"mlx-{service}", instance)
    try:
        yield Tracer(exporter.put, settings.sample_ratio, as_current_span)
    finally:
        await exporter.close()
