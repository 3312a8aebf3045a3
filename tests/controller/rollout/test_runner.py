"""Rolling out as people order it: a leader on a real server, and workers played by the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.client import connect
from shared.codec import decode, encode
from shared.errors import RequestError, Unavailable
from shared.ids import ControllerId
from shared.messages.control import ConfigureWorker, ControlReply
from shared.messages.rollout import (
    ApplyRollout,
    PauseRollout,
    PlanRollout,
    ResumeRollout,
    RollBack,
    Rollout,
    RolloutOrder,
    RolloutReply,
    RolloutState,
    ShowRollout,
)
from shared.settings.controller import RolloutGatesSettings
from shared.settings.controller import RolloutSettings as Settings
from shared.settings.nats import NatsSettings
from tests.access.roles import as_role
from tests.controller.running import Running, running_controller
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio

LEASE = {"ttl_s": 2}
"""A process of a busy machine stands still for a second at times; of 1 s nothing would be left."""
AT_ONCE = Settings(baseline_s=0, bake_s=0)
PATIENT = Settings(baseline_s=0, bake_s=600)
TEXT = "worker: {drain_timeout_ms: 1}"


class PlayedWorker:
    """Takes versions as it is told.

    Attributes:
        orders: that it got.
        refusals: what it says to a version that it does not take.
    """

    def __init__(self, cluster: Running, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.orders: list[ConfigureWorker] = []
        self.refusals: dict[int, str] = {}

    async def join(self) -> "PlayedWorker":
        self._worker = await self._cluster.worker(self._name)
        subject = subjects.worker_control(self._worker.id, "config")
        await self._cluster.bus.subscribe(subject, self._on_config)
        return self

    async def _on_config(self, message: IncomingMessage) -> None:
        order = decode(ConfigureWorker, message.payload)
        self.orders.append(order)
        refusal = self.refusals.get(order.version)
        ok = refusal is None
        reply = ControlReply(worker=self._worker.id, ok=ok, code="settings", message=refusal)
        await self._cluster.bus.publish(message.reply, encode(reply))
        if ok:
            await self.say(config_version=order.version)

    async def say(self, **fields: Any) -> None:
        await self._worker.say("heartbeat", **fields)


class Leader:
    """A controller that leads, and orders to it."""

    def __init__(self, cluster: Running, url: str) -> None:
        self.cluster = cluster
        self._url = url

    async def order(self, order: RolloutOrder) -> RolloutReply:
        async with connect(as_role("admin", "local", self._url)) as client:
            return await client.rollout(order)

    async def state(self) -> RolloutState:
        state = (await self.order(ShowRollout())).state
        assert state is not None
        return state

    async def apply(self, text: str = TEXT, settings: Settings = AT_ONCE, **fields: Any) -> None:
        await self.order(ApplyRollout(text=text, settings=settings, **fields))

    async def until(self, phase: str) -> Rollout:
        while True:
            rollout = (await self.state()).rollout
            if rollout is not None and rollout.phase == phase:
                return rollout

    async def until_leads(self) -> "Leader":
        await self.cluster.until(lambda: self.cluster.controller.report().leader)
        return self

    async def worker(self, name: str) -> PlayedWorker:
        return await PlayedWorker(self.cluster, name).join()


@pytest.fixture
async def leader(server: NatsProcess, own_bus: Bus) -> AsyncIterator[Leader]:
    nats = NatsSettings(servers=[server.url])
    async with running_controller(nats, own_bus, lease=LEASE) as cluster:
        yield await Leader(cluster, server.url).until_leads()


async def test_all_workers_get_it_one_after_another(leader: Leader) -> None:
    one, two = await leader.worker("w1"), await leader.worker("w2")
    await leader.apply(note="why", by="ada")
    rollout = await leader.until("done")
    assert [order.version for order in one.orders + two.orders] == [1, 1]
    assert one.orders[0].text == TEXT
    assert (rollout.by, rollout.note, rollout.steps) == ("ada", "why", [["w1"], ["w2"]])
    assert (await leader.state()).stable == 1
    await leader.cluster.until(lambda: leader.cluster.controller.report().config_version == 1)


async def test_a_refusal_rolls_it_back_and_is_the_reason(leader: Leader) -> None:
    one, two = await leader.worker("w1"), await leader.worker("w2")
    one.refusals[1] = "no such model here"
    await leader.apply()
    rollout = await leader.until("rolled_back")
    assert rollout.reason == "w1 rejected the version: no such model here"
    assert two.orders == [] and (await leader.state()).stable == 0


async def test_two_at_once_are_refused(leader: Leader) -> None:
    await leader.worker("w1")
    await leader.apply(settings=PATIENT)
    with pytest.raises(RequestError, match="version 1 is being rolled out"):
        await leader.apply()
    await leader.until("baking")
    assert (await leader.state()).last_version == 1


async def test_a_text_that_is_no_good_never_becomes_a_version(leader: Leader) -> None:
    one = await leader.worker("w1")
    for text, said in (
        ("worker: {drain: 1}", "cluster.yaml, line 1: worker.drain: unknown key"),
        ("{", "no valid YAML"),
        ("overrides: [{match: {chip: M2}, worker: {id: 5}}]", "overrides.0.worker.id"),
    ):
        for order in (ApplyRollout(text=text), PlanRollout(text=text)):
            with pytest.raises(RequestError) as caught:
                await leader.order(order)
            assert said in caught.value.message and caught.value.code == "settings"
    state = await leader.state()
    assert (state.last_version, state.rollout, one.orders) == (0, None, [])


async def test_a_pause_holds_it_until_it_is_resumed(leader: Leader) -> None:
    one, two = await leader.worker("w1"), await leader.worker("w2")
    await leader.apply(settings=PATIENT)
    await leader.until("baking")
    await leader.order(PauseRollout())
    state = await leader.state()
    assert state.rollout is not None and state.rollout.paused
    reply = await leader.order(ResumeRollout())
    assert reply.state is not None and reply.state.rollout is not None
    assert not reply.state.rollout.paused
    assert (len(one.orders), len(two.orders)) == (1, 0)


async def test_one_that_is_done_is_taken_back_by_one_order(leader: Leader) -> None:
    one = await leader.worker("w1")
    await leader.apply()
    await leader.until("done")
    await leader.apply(text="worker: {drain_timeout_ms: 2}")
    await leader.until("done")
    while (await leader.state()).stable != 2:
        pass
    await leader.order(RollBack())
    while (await leader.state()).stable != 1:
        pass
    await leader.order(RollBack(version=0))
    while (await leader.state()).stable != 0:
        pass
    assert [order.version for order in one.orders] == [1, 2, 1, 0]
    assert one.orders[-1].text is None
    history = [(rollout.version, rollout.before) for rollout in (await leader.state()).history]
    assert history == [(1, 2), (2, 1), (1, 0)]


async def test_what_is_not_there_cannot_be_ordered(leader: Leader) -> None:
    with pytest.raises(RequestError, match="there is no worker"):
        await leader.apply()
    await leader.worker("w1")
    orders: list[tuple[RolloutOrder, str]] = [
        (PauseRollout(), "nothing is being rolled out"),
        (ResumeRollout(), "nothing is being rolled out"),
        (RollBack(), "nothing was rolled out"),
        (RollBack(version=7), "version 7 is no longer stored"),
        (RollBack(version=0), "version 0 is already running"),
        (ShowRollout(version=7), "there is no version 7"),
    ]
    for order, said in orders:
        with pytest.raises(RequestError, match=said):
            await leader.order(order)
    with pytest.raises(RequestError, match="there is no worker 'w9'"):
        await leader.apply(canaries=["w9"])


@pytest.mark.parametrize(
    ("verb", "payload"),
    [
        ("apply", b""),
        ("apply", b"{"),
        ("apply", b'{"text": 5}'),
        ("apply", b'{"text": "{}", "more": 1}'),
        ("apply", b'{"text": "{}", "settings": {"steps_percent": [50]}}'),
        ("show", b'{"version": -1}'),
        ("fly", b"{}"),
    ],
)
async def test_orders_that_are_none_are_answered(leader: Leader, verb: str, payload: bytes) -> None:
    answer = await leader.cluster.bus.request(subjects.rollout(verb), payload, timeout_s=30)
    reply = decode(RolloutReply, answer.payload)
    assert not reply.ok and reply.code == "invalid_request" and reply.message


async def test_who_comes_late_gets_what_all_run(leader: Leader) -> None:
    await leader.worker("w1")
    await leader.apply()
    await leader.until("done")
    late = await leader.worker("w2")
    await leader.cluster.until(lambda: [order.version for order in late.orders] == [1])


async def test_a_number_is_not_used_again_where_its_text_may_still_run(leader: Leader) -> None:
    one = await leader.worker("w1")
    one.refusals[0] = "not yet"  # that is what all are to run
    await one.say(config_version=7)
    await leader.cluster.settle()
    await leader.apply()
    assert (await leader.until("done")).version == 8


async def test_the_next_leader_goes_on(server: NatsProcess, own_bus: Bus) -> None:
    nats, second = NatsSettings(servers=[server.url]), ControllerId("c-2")
    first = AsyncExitStack()
    async with first:
        cluster = await first.enter_async_context(running_controller(nats, own_bus, lease=LEASE))
        leader = await Leader(cluster, server.url).until_leads()
        worker = await leader.worker("w1")
        async with running_controller(nats, own_bus, lease=LEASE, name=second) as other:
            await worker.say()
            await leader.apply(settings=PATIENT)
            await leader.until("baking")
            await worker.say(config_version=1)
            await other.until(lambda: other.controller.report().workers == 1)
            await first.aclose()
            heir = await Leader(other, server.url).until_leads()
            assert (await heir.until("baking")).settings == PATIENT
            await heir.order(RollBack(by="ada"))
            assert (await heir.until("rolled_back")).reason == "ordered by ada"
    assert [order.version for order in worker.orders] == [1, 0]


async def test_without_a_leader_that_is_said(server: NatsProcess) -> None:
    async with connect(as_role("admin", "local", server.url)) as client:
        with pytest.raises(Unavailable, match="no controller leads"):
            await client.rollout(ShowRollout())


async def test_a_leader_without_jetstream_can_keep_nothing_and_says_so(
    server: NatsProcess, own_bus: Bus
) -> None:
    server.kill()
    server.store = None
    await asyncio.to_thread(server.start)
    nats = NatsSettings(servers=[server.url])
    async with running_controller(nats, own_bus, lease=LEASE) as cluster:
        with pytest.raises(RequestError, match="JetStream could not read state"):
            await Leader(cluster, server.url).state()


async def test_it_can_be_switched_off(server: NatsProcess, own_bus: Bus) -> None:
    nats = NatsSettings(servers=[server.url])
    off = {"enabled": False}
    async with running_controller(nats, own_bus, lease=LEASE, rollout=off) as cluster:
        leader = await Leader(cluster, server.url).until_leads()
        await leader.worker("w1")
        with pytest.raises(RequestError, match=r"controller\.rollout\.enabled"):
            await leader.apply()
        assert (await leader.state()).rollout is None


def test_a_text_of_more_than_a_megabyte_is_no_order() -> None:
    with pytest.raises(ValueError, match="at most 1048576"):
        ApplyRollout(text="x" * (1024 * 1024 + 1))


async def test_a_gate_that_is_null_stays_so(leader: Leader) -> None:
    await leader.worker("w1")
    open_ = PATIENT.model_copy(
        update={"gates": RolloutGatesSettings(throughput=None, failover_ms=None)}
    )
    await leader.apply(settings=open_)
    rollout = await leader.until("baking")
    assert rollout.settings == open_ and rollout.settings.gates.throughput is None
