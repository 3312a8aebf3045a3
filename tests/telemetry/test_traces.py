"""Traces of a real cluster: a gateway, a controller, two workers, and a collector that decodes what
they send."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from shared.client import Cluster, connect
from tests.access.roles import as_client
from tests.processes import ClusterProcess, cluster_process, free_port, wait_for, wait_until
from tests.raw_client import plain_client
from tests.telemetry.collector import Collector, Received, collector

pytestmark = pytest.mark.anyio

SECRET = "the-otter-of-the-quiet-harbour"
SLACK_NS = 5_000_000
LATE_NS = 200_000_000
"""How much later the process above may hear of an end, where two cores are shared by all."""
TOKENS = 3000


@pytest.fixture(scope="module")
def received() -> Iterator[Collector]:
    with collector() as running:
        yield running


@pytest.fixture(scope="module")
def metrics_port() -> str:
    return free_port()


@pytest.fixture(scope="module")
def process(received: Collector, roomy_model: Path, metrics_port: str) -> Iterator[ClusterProcess]:
    settings = {
        "CLUSTER__TELEMETRY__OTLP_ENDPOINT": received.url,
        "CLUSTER__TELEMETRY__HEADERS": json.dumps({"x-team": "otters"}),
        "CLUSTER__CONTROLLER__METRICS__ENABLED": "true",
        "CLUSTER__CONTROLLER__METRICS__PORT": metrics_port,
    }
    with cluster_process(
        workers=2, model=str(roomy_model), arguments=("--http-port", "0"), settings=settings
    ) as running:
        yield running


@pytest.fixture
async def cluster(process: ClusterProcess) -> AsyncIterator[Cluster]:
    async with connect(as_client(process.url)) as client:

        async def are_ready() -> bool:
            workers = (await client.health()).workers
            return len(workers) == 2 and all(each.state == "ready" for each in workers)

        await wait_until(are_ready)
        yield client


@pytest.fixture
async def http(process: ClusterProcess, cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=process.ready["http_url"], timeout=120) as client:
        yield client


def new_ids() -> tuple[str, str]:
    return secrets.token_hex(16), secrets.token_hex(8)


def one(spans: list[Received], name: str) -> Received:
    (found,) = [span for span in spans if span.name == name]
    return found


def all_of(spans: list[Received], name: str) -> list[Received]:
    return [span for span in spans if span.name == name]


def check_nesting(spans: list[Received], root_parent: str) -> None:
    """Each span is inside its parent, and there is one root."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        assert span.ended_ns >= span.started_ns
        if span.parent_id == root_parent:
            continue
        parent = by_id[span.parent_id]
        assert span.started_ns >= parent.started_ns - SLACK_NS, (span, parent)
        slack_ns = SLACK_NS if span.instance == parent.instance else LATE_NS
        assert span.ended_ns <= parent.ended_ns + slack_ns, (span, parent)
    assert len([span for span in spans if span.parent_id == root_parent]) == 1


def check_sum(spans: list[Received]) -> None:
    """A request waits or has an attempt, from its start to its end."""
    request = one(spans, "request")
    phases = [span for span in spans if span.name in ("waiting", "attempt")]
    assert all(span.parent_id == request.span_id for span in phases)
    ends = [request.started_ns, *(span.ended_ns for span in phases)]
    starts = [*(span.started_ns for span in phases), request.ended_ns]
    for end, start in zip(ends, starts, strict=True):
        assert abs(end - start) < SLACK_NS


async def ask(http: httpx.AsyncClient, headers: dict[str, str], **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": SECRET}]
    body = {"messages": messages, "max_tokens": 20, "temperature": 0, **fields}
    return await http.post("/v1/chat/completions", json=body, headers=headers)


async def test_a_request_is_one_trace_from_http_to_the_last_token(
    http: httpx.AsyncClient, received: Collector
) -> None:
    trace_id, parent = new_ids()
    headers = {"traceparent": f"00-{trace_id}-{parent}-01", "tracestate": "a=1, b@x=2"}
    answer = await ask(http, headers)
    assert answer.status_code == 200
    names = ("request", "attempt", "dispatch", "queue", "prefill", "decode", "publish")
    spans = received.wait_for_spans(trace_id, "POST /v1/chat/completions", *names)
    check_nesting(spans, parent)
    check_sum(spans)
    services = {span.name: span.service for span in spans}
    assert services["POST /v1/chat/completions"] == "mlx-gateway"
    assert {services[name] for name in names[:3]} == {"mlx-controller"}
    assert {services[name] for name in names[3:]} == {"mlx-worker"}
    assert {span.tracestate for span in spans} == {"a=1,b@x=2"}
    gateway, request, attempt = (
        one(spans, name) for name in ("POST /v1/chat/completions", "request", "attempt")
    )
    assert (gateway.kind, request.kind) == (2, 5)  # server, consumer
    assert request.parent_id == gateway.span_id
    prefill, decode = one(spans, "prefill"), one(spans, "decode")
    assert {span.parent_id for span in (prefill, decode)} == {attempt.span_id}
    usage = answer.json()["usage"]
    assert gateway.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert prefill.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    for span in (gateway, request, decode):
        assert span.attributes["gen_ai.usage.output_tokens"] == 20
        assert span.attributes["gen_ai.operation.name"] == "chat"
        assert span.attributes["gen_ai.provider.name"] == "mlx"
    assert decode.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert gateway.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert gateway.attributes["http.response.status_code"] == 200
    assert request.attributes["mlx.request_id"] == answer.headers["x-request-id"]
    assert request.attributes["gen_ai.response.model"] == prefill.attributes["gen_ai.request.model"]
    assert attempt.attributes["mlx.worker"] == decode.instance == decode.attributes["mlx.worker"]
    assert not any(span.failed or "error.type" in span.attributes for span in spans)
    assert received.headers["x-team"] == "otters"


async def test_the_chunks_of_a_long_prompt_are_events(
    http: httpx.AsyncClient, received: Collector
) -> None:
    trace_id, parent = new_ids()
    headers = {"traceparent": f"00-{trace_id}-{parent}-01"}
    messages = [{"role": "user", "content": "otter " * 700}]
    assert (await ask(http, headers, messages=messages)).status_code == 200
    prefill = one(received.wait_for_spans(trace_id, "prefill"), "prefill")
    assert {name for name, _ in prefill.events} == {"prefill chunk"}
    times = [at for _, at in prefill.events]
    assert times == sorted(times) and len(times) > 1
    assert prefill.started_ns <= times[0] and times[-1] <= prefill.ended_ns


async def test_a_migration_is_a_link_in_the_same_trace(
    http: httpx.AsyncClient, cluster: Cluster, process: ClusterProcess, received: Collector
) -> None:
    trace_id, parent = new_ids()
    body = {
        "messages": [{"role": "user", "content": SECRET}], "max_tokens": TOKENS, "stream": True,
        "temperature": 0,
    }  # fmt: skip
    headers = {"traceparent": f"00-{trace_id}-{parent}-01"}
    killed = ""
    pieces = 0
    async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        async for line in answer.aiter_lines():
            pieces += line.startswith("data: {")
            if pieces > 30 and not killed:
                busy = [each for each in (await cluster.health()).workers if each.active_requests]
                if busy:
                    killed = busy[0].id
                    process.member(killed).kill()
    assert killed, "it ended before its worker was known"
    gateway_name = "POST /v1/chat/completions"
    spans = received.wait_for_spans(
        trace_id, gateway_name, "request", "attempt", "attempt", "decode"
    )
    check_nesting(spans, parent)
    check_sum(spans)
    first, second = all_of(spans, "attempt")
    assert first.attributes["mlx.worker"] == killed != second.attributes["mlx.worker"]
    assert (first.attributes["mlx.attempt"], second.attributes["mlx.attempt"]) == (1, 2)
    assert (first.failed, first.attributes["error.type"]) == (True, "worker_lost")
    assert (first.links, second.links) == ([], [first.span_id])
    assert not second.failed and not one(spans, "request").failed
    assert one(spans, "request").attributes["mlx.failed_attempts"] == 1
    assert {span.instance for span in all_of(spans, "decode")} == {second.attributes["mlx.worker"]}
    assert one(spans, gateway_name).attributes["gen_ai.usage.output_tokens"] == TOKENS
    assert one(spans, "request").attributes["gen_ai.usage.output_tokens"] == TOKENS


async def test_a_plain_nats_client_continues_its_trace(
    cluster: Cluster, process: ClusterProcess, received: Collector
) -> None:
    for name in ("traceparent", "Traceparent"):
        trace_id, parent = new_ids()
        body = {"prompt": SECRET, "max_tokens": 3}
        headers = {name: f"00-{trace_id}-{parent}-01"}
        async with plain_client(as_client(process.url)) as nats:
            inbox = nats.new_inbox()
            subscription = await nats.subscribe(inbox)
            payload = json.dumps(body).encode()
            await nats.publish("mlx.infer.local.chat", payload, reply=inbox, headers=headers)
            while not json.loads((await subscription.next_msg(60)).data).get("done"):
                pass
        spans = received.wait_for_spans(trace_id, "request", "attempt", "decode", "publish")
        check_nesting(spans, parent)
        check_sum(spans)
        assert one(spans, "request").parent_id == parent
        assert one(spans, "request").attributes["gen_ai.operation.name"] == "text_completion"


@pytest.mark.parametrize(
    "value",
    [
        "", "00", "nonsense", "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 32 + "-" + "0" * 16 + "-01", "ff-" + "1" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "A" * 32 + "-" + "1" * 16 + "-01", "00-" + "1" * 32 + "-" + "1" * 16 + "-01-more",
        "00-" + "1" * 32 + "-" + "1" * 16 + "-01" + "x" * 5000,
    ],
)  # fmt: skip
async def test_a_malformed_header_is_ignored(
    http: httpx.AsyncClient, received: Collector, value: str
) -> None:
    answer = await ask(http, {"traceparent": value, "tracestate": "x" * 3000})
    assert answer.status_code == 200
    request_id = answer.headers["x-request-id"]

    def own() -> list[Received]:
        spans = [span for span in received.spans() if span.kind == 2]
        return [span for span in spans if span.attributes["mlx.request_id"] == request_id]

    (gateway,) = wait_for(own, "the span of the gateway")
    assert gateway.parent_id == "" and gateway.trace_id not in value
    assert gateway.tracestate == ""


async def test_a_huge_tracestate_is_dropped_and_the_trace_continued(
    http: httpx.AsyncClient, received: Collector
) -> None:
    trace_id, parent = new_ids()
    state = ",".join(f"k{number}=" + "v" * 30 for number in range(31))
    headers = {"traceparent": f"00-{trace_id}-{parent}-01", "tracestate": state}
    assert (await ask(http, headers)).status_code == 200
    spans = received.wait_for_spans(trace_id, "request", "publish")
    assert {span.tracestate for span in spans} == {""}


async def test_a_trace_that_its_client_does_not_sample_is_not_recorded(
    http: httpx.AsyncClient, received: Collector
) -> None:
    unsampled, parent = new_ids()
    assert (await ask(http, {"traceparent": f"00-{unsampled}-{parent}-00"})).status_code == 200
    trace_id, parent = new_ids()
    assert (await ask(http, {"traceparent": f"00-{trace_id}-{parent}-01"})).status_code == 200
    received.wait_for_spans(trace_id, "request", "publish", "POST /v1/chat/completions")
    assert received.spans(unsampled) == []


async def test_failures_have_their_code_and_cancelled_requests_are_none(
    http: httpx.AsyncClient, cluster: Cluster, received: Collector
) -> None:
    trace_id, parent = new_ids()
    answer = await ask(http, {"traceparent": f"00-{trace_id}-{parent}-01"}, temperature=9)
    assert answer.status_code == 400
    (gateway,) = received.wait_for_spans(trace_id, "POST /v1/chat/completions")
    assert (gateway.failed, gateway.attributes["error.type"]) == (True, "invalid_request")

    trace_id, parent = new_ids()
    headers = {"traceparent": f"00-{trace_id}-{parent}-01"}
    answer = await ask(http, headers, max_tokens=60_000, timeout_ms=1500)
    assert answer.status_code == 504
    names = ("POST /v1/chat/completions", "request", "attempt", "decode", "publish")
    spans = received.wait_for_spans(trace_id, *names)
    for name in names[:-1]:
        assert one(spans, name).attributes["error.type"] == "deadline_exceeded", name
    check_nesting(spans, parent)

    trace_id, parent = new_ids()
    headers = {"traceparent": f"00-{trace_id}-{parent}-01"}
    task = asyncio.ensure_future(ask(http, headers, max_tokens=60_000))

    async def runs() -> bool:
        return any(each.active_requests for each in (await cluster.health()).workers)

    await wait_until(runs)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    spans = received.wait_for_spans(trace_id, *names[:3], "publish")
    assert not any(span.failed for span in spans)
    assert one(spans, "request").attributes["mlx.outcome"] == "cancelled", [
        (s.name, s.attributes, s.seconds) for s in spans
    ]
    assert one(spans, names[0]).attributes["mlx.outcome"] == "client_gone"
    check_nesting(spans, parent)


async def test_parts_of_a_list_are_below_the_list(
    http: httpx.AsyncClient, received: Collector
) -> None:
    trace_id, parent = new_ids()
    body = {"prompt": ["a", "b", "c"], "max_tokens": 2}
    headers = {"traceparent": f"00-{trace_id}-{parent}-01"}
    assert (await http.post("/v1/completions", json=body, headers=headers)).status_code == 200
    names = ["request"] * 4 + ["publish"] * 3 + ["POST /v1/completions"]
    spans = received.wait_for_spans(trace_id, *names)
    check_nesting(spans, parent)
    whole, *parts = sorted(all_of(spans, "request"), key=lambda span: span.started_ns)
    assert len(parts) == 3 and {part.parent_id for part in parts} == {whole.span_id}


async def test_histograms_name_a_trace_where_the_scraper_reads_open_metrics(
    http: httpx.AsyncClient, process: ClusterProcess, received: Collector, metrics_port: str
) -> None:
    trace_id, parent = new_ids()
    await ask(http, {"traceparent": f"00-{trace_id}-{parent}-01"})
    received.wait_for_spans(trace_id, "request", "POST /v1/chat/completions")
    accept = {"accept": "application/openmetrics-text; version=1.0.0; charset=utf-8"}
    for url, names in (
        (
            f"{process.ready['http_url']}/metrics",
            ("gateway_time_to_first_token", "gateway_request"),
        ),
        (
            f"http://127.0.0.1:{metrics_port}/metrics",
            ("controller_time_to_first_token", "controller_request"),
        ),
    ):
        text = (await http.get(url, headers=accept)).text
        parsed = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        families = {each.name: each for each in parsed}
        for name in names:
            samples = families[f"mlx_{name}_seconds"].samples
            traces = {sample.exemplar.labels["trace_id"] for sample in samples if sample.exemplar}
            assert trace_id in traces, name
        plain = await http.get(url)
        assert plain.headers["content-type"].startswith("text/plain")
        assert trace_id not in plain.text


async def test_no_text_of_a_request_or_an_answer_is_in_what_was_sent(received: Collector) -> None:
    assert len(received.bodies) > 3
    assert not any(SECRET.encode() in body for body in received.bodies)
