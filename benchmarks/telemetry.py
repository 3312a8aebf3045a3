"""What traces cost: the spans of a request, made, queued, encoded and sent.

    python -m benchmarks.telemetry

One process makes the spans of the gateway, of the leader and of a worker with their own code, and
sends them to a collector in a process of its own, as fast as it can. The processor time of this
process, its sending thread included, is that of a request in all three; compared with 1 % of a core
at so many streams.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from benchmarks.children import started
from benchmarks.measures import print_table, save, spread
from controller.requests.request_trace import RequestTrace
from shared.ids import ClientName, ControllerId, ModelId, RequestId, SkillName, WorkerId
from shared.messages.dispatch import Dispatch
from shared.messages.request import InferenceRequest
from shared.messages.stream import DoneMessage, Usage
from shared.messages.trace import TraceContext
from shared.settings.telemetry import TelemetrySettings
from shared.telemetry import Span, Tracer, gen_ai, tracing
from worker.requests.active_request import ActiveRequest
from worker.requests.attempt_spans import attempt_spans, publish_span

_WORKER, _MODEL = WorkerId("w1"), ModelId("demo")
_CHUNKS = 4
_LIMIT = 0.01


class _Requests:
    """Makes requests that took some time, each with its spans."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.spans = 0

    def serve(self) -> None:
        began_at = time.monotonic()
        gateway = self._tracer.begin(None)
        headers = {"traceparent": f"00-{gateway.trace_id}-{gateway.span_id}-01"}
        trace = RequestTrace.begun(self._tracer.begin(headers), began_at)
        assert trace is not None
        trace.offered(1, _WORKER, _MODEL, "queue_full", began_at + 0.001)
        trace.accepted(began_at + 0.002)
        self._record(trace.take())
        active = _answered(trace.wire_fields())
        self._record(attempt_spans(active))
        self._record(publish_span(active))
        trace.ended(_attributes(), "", began_at + 1, "")
        self._record(trace.take())
        self._record(
            [
                Span(
                    "POST /v1/chat/completions",
                    gateway.trace_id,
                    gateway.span_id,
                    None,
                    began_at,
                    began_at + 1,
                    {"http.request.method": "POST", "http.route": "/v1/chat/completions"}
                    | _attributes(),
                    kind="server",
                )
            ]
        )

    def _record(self, spans: list[Span]) -> None:
        self.spans += len(spans)
        self._tracer.record(spans)


def _answered(trace: dict[str, Any]) -> ActiveRequest:
    dispatch = Dispatch(
        request_id=RequestId("r"),
        client=ClientName("bench"),
        skill=SkillName("chat"),
        model=_MODEL,
        attempt=1,
        inboxes=["_INBOX.x"],
        seed=1,
        elapsed_ms=2,
        request=_REQUEST,
        trace=TraceContext(**trace),
    )
    active = ActiveRequest(dispatch, ControllerId("c1"), _WORKER, [1], traced=True)
    active.admit(0)
    active.start_choice(active.choices[0], 2000)
    for chunk in range(1, _CHUNKS + 1):
        active.advance_prompt(active.choices[0], chunk * 500, 2000)
    active.times.first_token_at = active.ended_at = time.monotonic()
    active.end = DoneMessage(
        RequestId("r"), 1, _WORKER, Usage(2000, 0, 128), active.times.timings()
    )
    return active


_REQUEST = InferenceRequest(prompt="x")


def _attributes() -> dict[str, Any]:
    return {
        "mlx.request_id": "r",
        "mlx.outcome": "ok",
        gen_ai.OPERATION: "chat",
        gen_ai.PROVIDER: gen_ai.PROVIDER_NAME,
        gen_ai.REQUEST_MODEL: "chat",
        gen_ai.RESPONSE_MODEL: "demo",
        gen_ai.INPUT_TOKENS: 2000,
        gen_ai.OUTPUT_TOKENS: 128,
    }


async def _run(url: str, requests: int, per_pause: int) -> dict[str, float]:
    settings = TelemetrySettings(otlp_endpoint=url)
    async with tracing(settings, "bench", "bench") as tracer:
        assert tracer is not None
        served = _Requests(tracer)
        served.serve()  # connects
        served.spans = 0
        begun, in_loop_s = time.process_time(), 0.0
        for number in range(requests):
            since = time.thread_time()
            served.serve()
            in_loop_s += time.thread_time() - since
            if number % per_pause == per_pause - 1:
                await asyncio.sleep(0.05)  # while the thread sends
        spans = served.spans
    cpu_s = time.process_time() - begun
    return {
        "spans_per_request": spans / requests,
        "request_us": cpu_s / requests * 1e6,
        "in_event_loop_us": in_loop_s / requests * 1e6,
        "span_us": cpu_s / spans * 1e6,
    }


class _Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def _collector() -> Iterator[str]:
    """Run a collector in a process of its own; gives its URL."""
    command = [sys.executable, "-m", "benchmarks.telemetry", "--collector"]
    with started(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def _collect() -> None:
    server = HTTPServer(("127.0.0.1", 0), _Collector)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=4000, help="of each run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128, help="of an answer")
    parser.add_argument("--speed", type=float, default=40.0, help="tokens/s of each stream")
    parser.add_argument("--collector", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.collector:
        _collect()
        return
    with _collector() as url:
        runs = [asyncio.run(_run(url, arguments.requests, 100)) for _ in range(arguments.repeats)]
    medians = {name: spread(run[name] for run in runs) for name in runs[0]}
    per_s = arguments.streams * arguments.speed / arguments.tokens
    share = medians["request_us"]["median"] * per_s / 1e6
    print_table(
        "spans of a request, in microseconds of CPU",
        ("", "median", "min", "max"),
        [(name, *(f"{value:.1f}" for value in each.values())) for name, each in medians.items()],
    )
    print(
        f"{arguments.streams} streams of {arguments.speed:g} tokens/s, answers of "
        f"{arguments.tokens} tokens: {per_s:g} requests/s, {share:.2%} of a core "
        f"(limit {_LIMIT:.0%})"
    )
    result = {
        "options": vars(arguments), "medians": medians, "requests_per_s": per_s,
        "share_of_core": share, "limit": _LIMIT, "runs": runs,
    }  # fmt: skip
    print(f"written to {save('telemetry', result)}")


if __name__ == "__main__":
    main()
