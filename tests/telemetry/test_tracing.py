"""The tracer of a process, what it sends to a collector, and that it costs nothing when off."""

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import pytest
from opentelemetry import trace
from pydantic import ValidationError

from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.client import Cluster, connect
from shared.errors import SettingsError
from shared.ids import LOCAL_CLIENT
from shared.messages.trace import derived_span_id
from shared.settings.telemetry import TelemetrySettings
from shared.telemetry import Span, SpanEvent, Tracer, check_installed, tracing
from tests.access.roles import as_client
from tests.processes import ClusterProcess, wait_for
from tests.telemetry.collector import Collector, collector

pytestmark = pytest.mark.anyio

TRACE, OWN, PARENT = "a" * 32, "b" * 16, "c" * 16


@pytest.fixture
def received() -> Iterator[Collector]:
    with collector() as running:
        yield running


def span(name: str = "decode", **fields: Any) -> Span:
    now = time.monotonic()
    values: dict[str, Any] = {"parent_id": PARENT, "attributes": {}, **fields}
    return Span(name, TRACE, OWN, started_at=now - 2, ended_at=now - 1, **values)


def settings(url: str, **fields: Any) -> TelemetrySettings:
    return TelemetrySettings(otlp_endpoint=url, **fields)


# What is sent.


async def test_a_span_arrives_as_it_was_recorded(received: Collector) -> None:
    recorded = span(
        attributes={"a": 1, "b": ["x"], "c": 1.5, "d": True},
        kind="server",
        error="queue_full",
        events=[SpanEvent("prefill chunk", time.monotonic() - 1.5, {})],
        linked_ids=["d" * 16],
        tracestate="x=1",
    )
    async with tracing(settings(received.url), "worker", "w1") as tracer:
        assert tracer is not None
        tracer.record([recorded])
    (arrived,) = received.spans()
    assert (arrived.service, arrived.instance) == ("mlx-worker", "w1")
    assert (arrived.trace_id, arrived.span_id, arrived.parent_id) == (TRACE, OWN, PARENT)
    assert arrived.attributes == {
        "a": 1, "b": ["x"], "c": 1.5, "d": True, "error.type": "queue_full",
    }  # fmt: skip
    assert (arrived.failed, arrived.kind, arrived.links) == (True, 2, ["d" * 16])
    assert arrived.tracestate == "x=1"
    assert arrived.seconds == pytest.approx(1, abs=0.001)
    assert arrived.ended_ns / 1e9 == pytest.approx(time.time() - 1, abs=2)
    ((name, at),) = arrived.events
    assert name == "prefill chunk" and arrived.started_ns < at < arrived.ended_ns


async def test_a_url_with_its_path_is_used_as_it_is(received: Collector) -> None:
    for url in (received.url, f"{received.url}/", f"{received.url}/v1/traces"):
        assert settings(url).traces_url == f"{received.url}/v1/traces"
    async with tracing(settings(f"{received.url}/v1/traces"), "gateway", "g") as tracer:
        assert tracer is not None
        tracer.record([span()])
    assert len(received.spans()) == 1


async def test_a_collector_that_fails_is_logged_once_and_so_is_its_return(
    received: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    received.status = 400
    async with tracing(settings(received.url), "worker", "w1") as tracer:
        assert tracer is not None
        for number in (1, 2, 3):
            received.headers = {}
            tracer.record([span(f"lost {number}")])
            await asyncio.to_thread(wait_for, lambda: received.headers, "a request")
        received.status = 200
        tracer.record([span("kept")])
        await asyncio.to_thread(wait_for, received.spans, "a span")
    assert [each.name for each in received.spans()] == ["kept"]
    assert [each.getMessage() for each in caplog.records if "trace" in each.getMessage()] == [
        f"traces cannot be sent to {received.url}/v1/traces; they are dropped",
        f"traces are sent to {received.url}/v1/traces again",
    ]
    assert not [each for each in caplog.records if each.name.startswith("opentelemetry")]


async def test_a_process_ends_within_two_seconds_where_nobody_takes_its_spans() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # that never reads
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        async with tracing(settings(url), "worker", "w1") as tracer:
            assert tracer is not None
            before = time.monotonic()
            tracer.record([span()] * 20_000)  # more than are queued
            put_s = time.monotonic() - before
            ended_at = time.monotonic()
        assert time.monotonic() - ended_at < 3
        assert put_s < 5


# Which traces are recorded.


def test_a_new_trace_is_sampled_by_its_ratio() -> None:
    for ratio, low, high in ((0.0, 0, 0), (1.0, 1000, 1000), (0.25, 150, 350)):
        tracer = Tracer(lambda span: None, ratio)
        begun = [tracer.begin(None) for _ in range(1000)]
        assert low <= sum(each.sampled for each in begun) <= high
        assert len({each.trace_id for each in begun}) == 1000
        assert {(len(each.trace_id), len(each.span_id)) for each in begun} == {(32, 16)}


@pytest.mark.parametrize("ratio", [0.0, 1.0])
@pytest.mark.parametrize("flags", ["00", "01"])
def test_a_clients_trace_is_sampled_as_it_says(ratio: float, flags: str) -> None:
    tracer = Tracer(lambda span: None, ratio)
    begun = tracer.begin({"traceparent": f"00-{TRACE}-{PARENT}-{flags}"})
    assert (begun.trace_id, begun.parent_id, begun.sampled) == (TRACE, PARENT, flags == "01")
    assert begun.span_id != PARENT


def test_a_derived_id_is_the_same_everywhere_and_never_zero() -> None:
    ids = {derived_span_id(OWN, str(number)) for number in range(1000)}
    assert len(ids) == 1000 and all(len(each) == 16 and each.strip("0") for each in ids)
    assert derived_span_id(OWN, "1") == derived_span_id(OWN, "1")


# Settings.


@pytest.mark.parametrize(
    "fields",
    [
        {"otlp_endpoint": "collector:4318"}, {"otlp_endpoint": "grpc://c"},
        {"otlp_endpoint": "http://"}, {"sample_ratio": 1.1}, {"sample_ratio": -1},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TelemetrySettings(**fields)


def test_headers_are_secret() -> None:
    secret = settings("http://c", headers={"authorization": "Bearer abc"})
    assert "abc" not in repr(secret) and "abc" not in json.dumps(secret.model_dump(mode="json"))


async def test_an_endpoint_without_the_extra_is_an_error_of_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "shared.telemetry.otlp", None)
    check_installed(TelemetrySettings())
    with pytest.raises(SettingsError, match=r"pip install 'mlx-nats-cluster\[telemetry\]'"):
        check_installed(settings("http://c:4318"))
    with pytest.raises(SettingsError, match=r"pip install 'mlx-nats-cluster\[telemetry\]'"):
        async with tracing(settings("http://c:4318"), "worker", "w1"):
            pass


@pytest.mark.parametrize("command", ["controller", "worker", "gateway"])
def test_each_command_says_so_before_it_connects(command: str) -> None:
    block = "import sys; sys.modules['opentelemetry'] = None; "
    run = f"from mlx_nats_cluster.commands import {command}; {command}()"
    ended = subprocess.run(
        [sys.executable, "-c", block + run, "--nats", "nats://127.0.0.1:1"],
        env={**os.environ, "CLUSTER__TELEMETRY__OTLP_ENDPOINT": "http://127.0.0.1:1"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "pip install 'mlx-nats-cluster[telemetry]'" in ended.stderr
    assert "Traceback" not in ended.stderr


# Off.


def test_nothing_imports_opentelemetry_by_itself() -> None:
    modules = "controller.main, controller.gateway.main, worker.main, shared.client"
    code = f"import sys, {modules}; print([name for name in sys.modules if 'opentele' in name])"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.strip() == "[]"


@pytest.mark.skipif(sys.platform != "linux", reason="the mapped files of a process")
async def test_processes_that_served_a_request_untraced_have_not_loaded_it(
    tiny_cluster: ClusterProcess,
) -> None:
    """Its exporter is built on protobuf, a library whose file is mapped."""
    async with connect(as_client(tiny_cluster.url)) as client:
        await client.generate("hi", max_tokens=2)
    processes = [tiny_cluster.member(name) for name in ("controller-1", "worker-1", "worker-2")]
    for process in processes:
        mapped = {each.path for each in psutil.Process(process.pid).memory_maps()}
        assert not [path for path in mapped if "google" in path and "_message" in path]


async def test_a_tracer_without_an_endpoint_is_none() -> None:
    async with tracing(TelemetrySettings(), "worker", "w1") as tracer:
        assert tracer is None


# Programs with spans of their own.


async def _published(client: Cluster, bus: Bus) -> Mapping[str, str] | None:
    """The headers of a request that a client publishes now."""
    messages: asyncio.Queue[IncomingMessage] = asyncio.Queue()
    subscription = await bus.subscribe(subjects.INFER_ALL, messages.put)
    async with client.stream("hi") as stream:
        asking = asyncio.ensure_future(anext(aiter(stream)))
        message = await asyncio.wait_for(messages.get(), 10)
        asking.cancel()
        await asyncio.wait([asking])
    await subscription.unsubscribe()
    return message.headers


async def test_the_client_continues_the_current_span_of_a_program(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Cluster(bus, LOCAL_CLIENT)
    assert await _published(client, bus) is None
    state = trace.TraceState([("x", "1")])
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    context = trace.SpanContext(int(TRACE, 16), int(PARENT, 16), False, flags, state)
    with trace.use_span(trace.NonRecordingSpan(context)):
        assert await _published(client, bus) == {
            "traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "x=1",
        }  # fmt: skip
        monkeypatch.delitem(sys.modules, "opentelemetry.trace")
        assert await _published(client, bus) is None
