"""What a controller counts, and how it is had over HTTP."""

import asyncio
import http.client
import json
import socket
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from controller.fleet.registry import NodeRegistry
from controller.requests.metrics import ControllerMetrics, DispatchCounts, load_deviation
from shared.bus import Bus
from shared.errors import SettingsError
from shared.metrics_server import serving_metrics
from shared.refused_messages import RefusedMessages
from shared.settings.metrics import MetricsSettings
from shared.settings.nats import NatsSettings
from tests.controller.running import Running, running_controller
from tests.controller.simulated_worker import refuse
from tests.controller.values import view

pytestmark = pytest.mark.anyio

Samples = dict[tuple[str, ...], float]
ANY_PORT = MetricsSettings(enabled=True, port=0)
SECTION = "controller.metrics"


def figures_of(registry: NodeRegistry) -> CollectorRegistry:
    metrics = ControllerMetrics(registry, RefusedMessages())
    metrics.totals = DispatchCounts(waiting=7, waited=9, unplaced=2, dispatches=30, messages=4)
    return metrics.registry


def samples(text: str) -> Samples:
    """By name and values of the labels, in the order of their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told(cluster: Running) -> Samples:
    registry = cluster.controller._metrics.registry
    return samples(generate_latest(registry).decode())


async def test_requests_are_counted_by_model_worker_and_code(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    for name in ("a", "b"):
        inbox = await cluster.begin(request_id=name)
        dispatch = await worker.next_dispatch()
        await worker.emit(dispatch, 0, 1, 2, 3)
        await worker.finish(dispatch)
        await inbox.next()
    await cluster.until(lambda: cluster.controller.report().completed_requests == 2)
    acks = "mlx_controller_dispatch_seconds_count", "demo"
    await cluster.until(lambda: told(cluster).get(acks) == 2)  # which may come after the ends
    figures = told(cluster)
    assert figures["mlx_controller_requests_total", "ok", "demo", "w1"] == 2
    assert figures["mlx_controller_tokens_total", "demo", "w1"] == 6
    assert figures["mlx_controller_time_to_first_token_seconds_count", "demo"] == 2
    assert figures["mlx_controller_request_seconds_count", "demo"] == 2
    assert figures["mlx_controller_routed_prompt_bytes_total", "no", "demo", "w1"] == 2
    assert figures["mlx_controller_worker_requests", "sent_since", "w1"] == 0


async def test_rejections_retries_and_failures_are_counted(
    nats_settings: NatsSettings, bus: Bus
) -> None:
    async with running_controller(nats_settings, bus, retry={"initial_delay_ms": 1}) as cluster:
        full = await cluster.worker("w1")
        full.answer = refuse("queue_full")
        other = await cluster.worker("w2", active_requests=5)
        inbox = await cluster.begin(request_id="r")
        for _ in range(3):
            dispatch = await other.next_dispatch()
            await other.fail(dispatch, terminal_sent=False)
        code = (await inbox.end()).error.code
        figures = told(cluster)
        refused = figures["mlx_controller_refusals_total", "queue_full", "w1"]
        assert refused == 3
        assert figures["mlx_controller_retries_total", code, "w2"] == 2
        assert figures["mlx_controller_requests_total", code, "demo", "w2"] == 1


async def test_turns_of_sessions_are_counted_by_where_they_went(cluster: Running) -> None:
    home = await cluster.worker("w1")
    other = await cluster.worker("w2", active_requests=5)
    for number in range(2):
        await cluster.ask(session_id="s", request_id=f"home-{number}", history="sent",
                          messages=[{"role": "user", "content": "x"}], prompt=None)  # fmt: skip
        await home.finish(await home.next_dispatch())
        await cluster.settle()
    await home.say("state_changed", state="draining")
    await cluster.settle()
    await cluster.ask(session_id="s", request_id="moved", history="sent",
                      messages=[{"role": "user", "content": "x"}], prompt=None)  # fmt: skip
    await other.finish(await other.next_dispatch())
    await cluster.until(lambda: cluster.controller.report().moved_turns == 1)
    figures = told(cluster)
    turns = {went: figures["mlx_controller_session_turns_total", went]
             for went in ("first", "home", "moved")}  # fmt: skip
    assert turns == {"first": 1, "home": 1, "moved": 1}
    report = cluster.controller.report()
    assert (report.sticky_turns, report.moved_turns) == (1, 1)


def test_load_deviation_is_that_of_shares_over_their_mean() -> None:
    even = [view("a", active_requests=4), view("b", active_requests=8, max_batch_size=16)]
    assert load_deviation(even) == 0
    assert load_deviation([view("a", active_requests=8), view("b")]) == 1
    assert load_deviation([view("a"), view("b")]) == load_deviation([]) == 0
    out = view("c", active_requests=8, state="draining")
    assert load_deviation([*even, out]) == 0


def fetched(url: str, path: str = "/metrics") -> tuple[int, str]:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


async def test_the_figures_are_had_over_http() -> None:
    with serving_metrics(
        ANY_PORT, figures_of(NodeRegistry(silence_limit_s=3)), section=SECTION
    ) as url:
        assert url is not None
        status, text = await asyncio.to_thread(fetched, url)
        assert status == 200
        figures = samples(text)
        assert figures["mlx_controller_waiting_requests",] == 7
        assert figures["mlx_controller_waited_requests_total",] == 9
        assert figures["mlx_controller_unplaced_requests_total",] == 2
        assert figures["mlx_controller_dispatches_total",] == 30
        assert figures["mlx_controller_dispatch_messages_total",] == 4
        some = "/metrics?name[]=mlx_controller_waiting_requests"
        status, text = await asyncio.to_thread(fetched, url, some)
        assert (status, len(samples(text))) == (200, 1)
    with pytest.raises(OSError):
        await asyncio.to_thread(fetched, url)


async def test_without_being_enabled_nothing_is_served() -> None:
    with serving_metrics(MetricsSettings(), figures_of(NodeRegistry(3)), section=SECTION) as url:
        assert url is None


async def test_a_taken_port_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = MetricsSettings(enabled=True, port=port)
        registry = figures_of(NodeRegistry(3))
        with pytest.raises(SettingsError, match=f"controller.metrics.*{port}"):
            with serving_metrics(settings, registry, section=SECTION):
                pass


async def test_bytes_that_are_no_http_end_one_connection_and_no_more() -> None:
    with serving_metrics(ANY_PORT, figures_of(NodeRegistry(3)), section=SECTION) as url:
        assert url is not None
        where = urlsplit(url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(b"\x16\x03\x01" + json.dumps({"x": "y" * 1000}).encode() + b"\r\n\r\n")
        await reader.read()
        writer.close()
        assert (await asyncio.to_thread(fetched, url))[0] == 200
