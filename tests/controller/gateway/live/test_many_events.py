"""Viewers of a large cluster whose every row changes every second, and of one that is not there."""

import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from shared.messages.health import ClusterHealth
from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process
from tests.controller.gateway.live.scripted_leader import ScriptedLeader, leading
from tests.controller.gateway.live.test_cluster_rows import health
from tests.controller.gateway.live.viewers import LIMIT_S, reading_nothing, viewing
from tests.controller.values import report
from tests.processes import RunningNats, wait_for

SECURED = False  # no server knows the name of a leader that a test plays

_WORKERS = 300
_TEXT = "x" * 4000
_EVENT_BYTES = _WORKERS * len(_TEXT)
_STALLED = 20


@pytest.fixture(scope="module")
def leader(nats_server: RunningNats) -> Iterator[ScriptedLeader]:
    with leading(nats_server.url) as scripted:
        yield scripted


@pytest.fixture
def large(leader: ScriptedLeader) -> None:
    numbers = itertools.count()

    def grown() -> ClusterHealth:
        number = next(numbers)
        return health(
            *(report(f"w{index}", labels={"note": f"{number}{_TEXT}"}) for index in range(_WORKERS))
        )

    leader.health = grown


@contextlib.contextmanager
def _gateway(url: str, **settings: int) -> Iterator[GatewayProcess]:
    variables = {
        f"CLUSTER__GATEWAY__{name.upper()}": str(value) for name, value in settings.items()
    }
    with gateway_process(url, settings=variables) as process:
        yield process


def _viewers(gateway: GatewayProcess) -> int:
    """Its open connections, but for the one that asks."""
    connections = psutil.Process(gateway.process.pid).net_connections("tcp")
    return sum(
        one.status == "ESTABLISHED" and one.laddr.port == gateway.port for one in connections
    )


@pytest.mark.usefixtures("large")
def test_who_reads_nothing_is_dropped_while_others_go_on_receiving(
    nats_server: RunningNats,
) -> None:
    with (
        _gateway(nats_server.url, send_timeout_ms=1000) as gateway,
        viewing(gateway, "machines") as viewer,
        reading_nothing(gateway, "machines"),
    ):
        deadline = time.monotonic() + LIMIT_S
        while _viewers(gateway) > 1 or not viewer.rows("machines"):
            assert time.monotonic() < deadline, "it is not dropped"
            viewer.next()
        note = viewer.rows("machines")[0]["labels"]["note"]
        viewer.until(
            lambda viewer: viewer.rows("machines")[0]["labels"]["note"] != note, "it goes on"
        )
        assert len(viewer.rows("machines")) == _WORKERS


@pytest.mark.usefixtures("large")
def test_many_who_read_nothing_cost_little_memory(nats_server: RunningNats) -> None:
    """If every event waited for them it would be hundreds of megabytes."""
    with (
        _gateway(nats_server.url, send_timeout_ms=60_000) as gateway,
        viewing(gateway, "machines") as viewer,
        contextlib.ExitStack() as stalled,
    ):
        for _ in range(3):
            viewer.next()
        process = psutil.Process(gateway.process.pid)
        before = process.memory_info().rss
        for _ in range(_STALLED):
            stalled.enter_context(reading_nothing(gateway, "machines"))
        sent = 0
        while sent < 10:
            sent += viewer.next()[0] == "machines"
        grown = process.memory_info().rss - before
    assert grown < _STALLED * 2 * _EVENT_BYTES, f"{grown / 1e6:.0f} MB"


def test_hostile_texts_arrive_unchanged(nats_server: RunningNats, leader: ScriptedLeader) -> None:
    hostile = '</script>\n\nevent: session\ndata: {"rights":"admin"}\n\n\u2028\x00'
    models: list[dict[str, Any]] = [{"id": hostile, "state": "failed", "error": hostile}]
    leader.health = lambda: health(
        report("mac", models=models, labels={hostile: hostile}), skills={"chat": [hostile]}
    )
    with _gateway(nats_server.url) as gateway, viewing(gateway) as viewer:
        assert viewer.next()[1]["rights"] == "read"
        viewer.until(
            lambda viewer: viewer.values.keys() >= {"machines", "models", "overview", "log"},
            "its views",
        )
        assert viewer.values["session"]["rights"] == "read"
        (machine,), (model,) = viewer.rows("machines"), viewer.rows("models")
        assert machine["labels"] == {hostile: hostile} and model["id"] == hostile
        assert viewer.values["overview"]["skills"] == {"chat": [hostile]}
        texts = [record["text"] for record in viewer.values["log"]["records"]]
        assert any(hostile in text for text in texts)


def test_absurd_numbers_of_workers_do_not_end_the_gateway(
    nats_server: RunningNats, leader: ScriptedLeader
) -> None:
    most = 2**63 - 1
    absurd: dict[str, Any] = {
        "uptime_s": 1e308, "tokens_per_s": 1e308, "hardware": {"memory_bytes": most},
        "memory": {"own_bytes": most}, "engines": [{"index": 10**40, "state": "running"}],
    }  # fmt: skip
    leader.health = lambda: health(*(report(name, **absurd) for name in ("a", "b", "c")))
    with _gateway(nats_server.url) as gateway, viewing(gateway) as viewer:
        viewer.until(lambda viewer: len(viewer.rows("machines")) == 3, "the machines")
        viewer.until(lambda viewer: "overview" in viewer.values, "the overview")
        assert viewer.values["overview"]["memory_bytes"] == 3 * most
        assert httpx.get(f"{gateway.url}/health").status_code == 200


def test_at_most_a_thousand_machines_are_sent_with_how_many_there_are(
    nats_server: RunningNats, leader: ScriptedLeader
) -> None:
    workers = [report(f"w{number}") for number in range(1010)]
    leader.health = lambda: health(*workers)
    with _gateway(nats_server.url) as gateway, viewing(gateway, "machines") as viewer:
        viewer.until(lambda viewer: viewer.rows("machines"), "machines")
        assert len(viewer.rows("machines")) == 1000
        assert viewer.values["machines"]["total"] == 1010


# Without a controller.


@pytest.fixture
def alone(server: RunningNats) -> Iterator[GatewayProcess]:
    """A gateway whose cluster has no controller."""
    with _gateway(server.url) as gateway:
        yield gateway


def test_a_cluster_that_does_not_answer_is_told_and_nothing_is_sent_again(
    alone: GatewayProcess,
) -> None:
    with viewing(alone) as viewer:
        overview = viewer.until(
            lambda viewer: (value := viewer.values.get("overview")) and value["problem"] and value,
            "the problem",
        )
        assert overview["status"] == "unavailable" and "controller" in overview["problem"]
        assert overview["workers"] == 0 and overview["leader"] is None
        assert viewer.response.status_code == 200
    with httpx.stream("GET", f"{alone.url}/cluster/events", timeout=4) as response:
        text = b""
        with pytest.raises(httpx.ReadTimeout):
            for chunk in response.iter_raw():
                text += chunk
    assert text.count(b"event: session") == 1 and text.count(b"event: overview") == 1
    assert text.count(b"event:") == 2


def test_when_the_controller_comes_the_viewers_see_it(
    alone: GatewayProcess, server: RunningNats
) -> None:
    with viewing(alone) as viewer:
        viewer.until(lambda viewer: "overview" in viewer.values, "the overview")
        with leading(server.url) as scripted:
            scripted.health = lambda: health(report("mac"))
            viewer.until(lambda viewer: viewer.rows("machines"), "the machine")
            viewer.until(
                lambda viewer: viewer.values["overview"]["problem"] is None, "no problem any more"
            )
            texts = [record["text"] for record in viewer.until(
                lambda viewer: viewer.values.get("log"), "the log"
            )["records"]]  # fmt: skip
            assert "c-1 leads, in term 5" in texts
    wait_for(lambda: _viewers(alone) == 0, "the viewer has left")
