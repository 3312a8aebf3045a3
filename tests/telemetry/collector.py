"""A collector of the tests: receives OTLP over HTTP, and answers what arrived."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.processes import wait_for


@dataclass(frozen=True, slots=True)
class Received:
    """A span that arrived; times in nanoseconds of the wall clock."""

    service: str
    instance: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    started_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    failed: bool
    kind: int
    events: list[tuple[str, int]]
    links: list[str]
    tracestate: str

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.started_ns) / 1e9


@dataclass(slots=True)
class Collector:
    """
    Attributes:
        bodies: of all requests, as they came.
        headers: of the last one.
        status: which it answers.
    """

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200

    def spans(self, trace_id: str | None = None) -> list[Received]:
        """All spans, or those of a trace, in the order of their starts."""
        found = [span for body in list(self.bodies) for span in _decoded(body)]
        chosen = [span for span in found if trace_id in (None, span.trace_id)]
        return sorted(chosen, key=lambda span: (span.started_ns, -span.ended_ns))

    def wait_for_spans(self, trace_id: str, *names: str) -> list[Received]:
        """Return the spans of a trace once there is one of each name at least, as often as the
        names have it."""

        def complete() -> list[Received] | None:
            spans = self.spans(trace_id)
            left = [span.name for span in spans]
            return spans if all(left.count(name) >= names.count(name) for name in names) else None

        spans: list[Received] = wait_for(
            complete, f"spans {names}", 20, lambda: [span.name for span in self.spans(trace_id)]
        )
        return spans


@contextmanager
def collector() -> Iterator[Collector]:
    received = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.headers = {name.lower(): value for name, value in self.headers.items()}
            if self.path == "/v1/traces" and received.status == 200:
                received.bodies.append(body)
            self.send_response(received.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _decoded(body: bytes) -> Iterator[Received]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        of = _attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Received(
                    of["service.name"],
                    of["service.instance.id"],
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    _attributes(span.attributes),
                    span.status.code == 2,
                    span.kind,
                    [(event.name, event.time_unix_nano) for event in span.events],
                    [link.span_id.hex() for link in span.links],
                    span.trace_state,
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None
