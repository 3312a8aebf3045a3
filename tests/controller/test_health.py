"""What a running controller answers on its health subjects."""

import json

import pytest

from shared.messages.codec import decode
from shared.messages.health import ClusterHealth, ControllerHealth
from tests.controller.running import CONTROLLER, Running

pytestmark = pytest.mark.anyio


async def test_health_is_answered_on_its_subjects(cluster: Running) -> None:
    await cluster.worker("w1")
    await cluster.worker("w2", state="warming")
    for subject in ("mlx.health.controller", f"mlx.health.controller.{CONTROLLER}"):
        answer = await cluster.bus.request(subject, b"", timeout_s=10)
        health = decode(ControllerHealth, answer.payload)
        assert (health.live, health.ready, health.protocol) == (True, True, 1)
        assert (health.controller.id, health.controller.workers) == (CONTROLLER, 2)
    answer = await cluster.bus.request("mlx.health.cluster", b"", timeout_s=10)
    state = decode(ClusterHealth, answer.payload)
    assert (state.status, state.skills) == ("degraded", {"chat": ["demo"]})
    assert [(worker.id, worker.state) for worker in state.workers] == [
        ("w1", "ready"), ("w2", "warming"),
    ]  # fmt: skip
    assert [controller.id for controller in state.controllers] == [CONTROLLER]


async def test_the_cluster_is_unavailable_without_and_ready_with_its_workers(
    cluster: Running,
) -> None:
    async def status() -> str:
        answer = await cluster.bus.request("mlx.health.cluster", b"", timeout_s=10)
        return str(json.loads(answer.payload)["status"])

    assert await status() == "unavailable"
    worker = await cluster.worker("w1")
    assert await status() == "ready"
    await worker.say("state_changed", state="draining")
    await cluster.settle()
    assert await status() == "unavailable"


async def test_nats_micro_finds_the_controller(cluster: Running) -> None:
    answer = await cluster.bus.request("$SRV.INFO.mlx-controller", b"", timeout_s=10)
    info = json.loads(answer.payload)
    assert info["metadata"]["id"] == CONTROLLER
    assert {endpoint["subject"] for endpoint in info["endpoints"]} == {
        "mlx.health.controller", f"mlx.health.controller.{CONTROLLER}", "mlx.health.cluster",
    }  # fmt: skip
    stats = await cluster.bus.request("$SRV.STATS.mlx-controller", b"", timeout_s=10)
    assert len(json.loads(stats.payload)["endpoints"]) == 3
