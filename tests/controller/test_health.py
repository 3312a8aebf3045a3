"""What a running controller answers on its health subjects."""

import json

import pytest

from shared.bus import Bus, IncomingMessage
from shared.codec import decode
from shared.messages.health import ClusterHealth, ControllerHealth, LeaderInfo
from shared.settings.nats import NatsSettings
from shared.version import PROTOCOL
from tests.controller.pair import FIRST, SECOND, Pair, running_pair
from tests.controller.running import CONTROLLER, Running

pytestmark = pytest.mark.anyio


async def cluster_health(bus: Bus) -> ClusterHealth:
    answer = await bus.request("mlx.health.cluster", b"", timeout_s=10)
    return decode(ClusterHealth, answer.payload)


async def test_health_is_answered_on_its_subjects(cluster: Running) -> None:
    await cluster.worker("w1")
    await cluster.worker("w2", state="warming")
    for subject in ("mlx.health.controller", f"mlx.health.controller.{CONTROLLER}"):
        answer = await cluster.bus.request(subject, b"", timeout_s=10)
        health = decode(ControllerHealth, answer.payload)
        assert (health.live, health.ready, health.protocol) == (True, True, PROTOCOL)
        assert (health.controller.id, health.controller.workers) == (CONTROLLER, 2)
        assert (health.controller.leader, health.controller.leader_problem) == (True, None)
    state = await cluster_health(cluster.bus)
    assert (state.status, state.skills) == ("degraded", {"chat": ["demo"]})
    assert state.leader == LeaderInfo(id=CONTROLLER, term=cluster.machine.term)
    assert [(worker.id, worker.state) for worker in state.workers] == [
        ("w1", "ready"), ("w2", "warming"),
    ]  # fmt: skip
    assert [controller.id for controller in state.controllers] == [CONTROLLER]


async def test_the_cluster_is_unavailable_without_and_ready_with_its_workers(
    cluster: Running,
) -> None:
    async def status() -> str:
        return (await cluster_health(cluster.bus)).status

    assert await status() == "unavailable"
    worker = await cluster.worker("w1")
    assert await status() == "ready"
    await worker.say("state_changed", state="draining")
    await cluster.settle()
    assert await status() == "unavailable"


async def answers_of(pair: Pair, bus: Bus, subject: str, count: int) -> list[bytes]:
    """All answers to one question: so many, and no more."""
    answers: list[bytes] = []

    async def take(message: IncomingMessage) -> None:
        answers.append(message.payload)

    inbox = bus.new_inbox()
    await bus.subscribe(inbox, take)
    await bus.publish(subject, b"", reply=inbox)
    await pair.first.until(lambda: len(answers) == count)
    for one in (pair.first, pair.second):
        await one.settle()
    assert len(answers) == count
    return answers


async def test_every_controller_tells_its_own_health_and_the_leader_that_of_the_cluster(
    nats_settings: NatsSettings, bus: Bus
) -> None:
    async with running_pair(nats_settings, bus) as pair:
        answers = await answers_of(pair, bus, "mlx.health.controller", 2)
        told = [decode(ControllerHealth, answer).controller for answer in answers]
        assert {one.id: one.leader for one in told} == {FIRST: True, SECOND: False}
        (answer,) = await answers_of(pair, bus, "mlx.health.cluster", 1)
        health = decode(ClusterHealth, answer)
        assert health.leader is not None and health.leader.id == FIRST
        assert {one.id: one.leader for one in health.controllers} == {FIRST: True, SECOND: False}


async def test_nats_micro_finds_the_controller(cluster: Running) -> None:
    answer = await cluster.bus.request("$SRV.INFO.mlx-controller", b"", timeout_s=10)
    info = json.loads(answer.payload)
    assert info["metadata"]["id"] == CONTROLLER
    assert {endpoint["subject"] for endpoint in info["endpoints"]} == {
        "mlx.health.controller", f"mlx.health.controller.{CONTROLLER}",
    }  # fmt: skip
    stats = await cluster.bus.request("$SRV.STATS.mlx-controller", b"", timeout_s=10)
    assert len(json.loads(stats.payload)["endpoints"]) == 2
