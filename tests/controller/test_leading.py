"""Controllers of which one leads, and what they tell of it."""

import asyncio
import functools

import pytest

from shared import subjects
from shared.bus import Bus
from shared.ids import ControllerId
from shared.messages.codec import decode
from shared.messages.health import ClusterHealth
from shared.messages.stream import Done
from tests.access.roles import as_tester
from tests.controller.running import CONTROLLER, Running, running_controller
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio

_OTHER = ControllerId("c-2")
_QUICK = {"ttl_s": 2}
_HEARTBEATS = {"heartbeat_interval_ms": 100, "missed_heartbeats": 100}


def leads(running: Running) -> bool:
    return running.controller.report().leader


async def test_one_leads_everybody_is_told_and_the_next_follows_when_it_stops(
    server: NatsProcess, own_bus: Bus
) -> None:
    nats = as_tester(server.url)
    start = functools.partial(running_controller, lease=_QUICK, failover=_HEARTBEATS)
    async with start(nats, own_bus, name=_OTHER) as second:
        async with start(nats, own_bus) as first:
            await first.until(lambda: leads(first) or leads(second))
            assert not (leads(first) and leads(second))
            leader, other = (first, second) if leads(first) else (second, first)

            def told() -> list[bool]:
                known = other.controller._registry.controllers
                return [c.leader for c in known if c.id == leader.controller.id]

            await other.until(lambda: told() == [True])
            answer = await own_bus.request(subjects.HEALTH_CLUSTER, b"", timeout_s=10)
            health = decode(ClusterHealth, answer.payload)
            assert [c.id for c in health.controllers if c.leader] == [leader.controller.id]
        assert not leads(first)
        await second.until(lambda: leads(second))


async def test_without_jetstream_all_else_works(server: NatsProcess) -> None:
    server.kill()
    server.store = None
    await asyncio.to_thread(server.start)
    nats = as_tester(server.url)
    bus = await Bus.connect(nats, name="client", inbox_prefix="_INBOX.local", wait_s=10)
    try:
        async with running_controller(nats, bus, lease=_QUICK) as cluster:
            await cluster.until(lambda: cluster.controller.report().leader_problem is not None)
            report = cluster.controller.report()
            assert report.leader_problem == "the NATS server has no JetStream"
            assert (report.leader, report.state) == (False, "ready")
            worker = await cluster.worker("w1")
            inbox = await cluster.begin()
            await worker.finish(await worker.next_dispatch(), CONTROLLER)
            assert isinstance(await inbox.next(), Done)
    finally:
        await bus.close()
