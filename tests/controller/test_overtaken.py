"""A leader that was out of touch: where another one follows it says nothing more."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from controller.leader import leader
from shared import subjects
from shared.bus import Bus, IncomingMessage, Subscription
from shared.bus.lease_store import LeaseEntry
from shared.codec import decode_object, encode
from shared.errors import BusError
from shared.ids import BootId, ControllerId
from shared.messages.controller_report import ControllerReport
from shared.messages.events import ControllerEvent
from shared.settings.nats import NatsSettings
from tests.controller.pair import Pair, running_pair
from tests.controller.running import Running
from tests.controller.simulated_worker import SimulatedWorker
from tests.nats_proxy import NatsProxy

pytestmark = pytest.mark.anyio

FULL = {"active_requests": 8, "queued_requests": 10}
ROOM = {"active_requests": 0, "queued_requests": 0}
PATIENT_ROOM = {"max_wait_ms": 60_000}


class Cut(Pair):
    """A pair whose first controller, which leads, is behind a line."""

    def __init__(self, pair: Pair, line: NatsProxy) -> None:
        super().__init__(pair.first, pair.second)
        self.line = line

    @asynccontextmanager
    async def cut_off(self, seconds: float = 0.0) -> AsyncIterator[None]:
        """The first one; what is sent meanwhile goes through then, late, in both directions."""
        self.line.stall()
        yield
        await asyncio.sleep(seconds)
        self.line.resume()


@pytest.fixture
async def cut(nats_settings: NatsSettings, bus: Bus) -> AsyncIterator[Cut]:
    async with (
        NatsProxy(nats_settings.servers[0]) as line,
        running_pair(
            nats_settings,
            bus,
            first_nats=NatsSettings(servers=[line.url]),
            waiting_room=PATIENT_ROOM,
        ) as pair,
    ):
        yield Cut(pair, line)


async def heard_orders(bus: Bus) -> list[int]:
    """The terms of dispatches and orders to workers, from now on."""
    terms: list[int] = []

    async def take(message: IncomingMessage) -> None:
        terms.append(int(decode_object(message.payload)["term"]))

    for kind in ("infer", "control.*"):
        await bus.subscribe(f"mlx.worker.*.{kind}", take)
    await bus.flush()
    return terms


async def test_a_leader_that_was_overtaken_sends_workers_nothing_more(cut: Cut, bus: Bus) -> None:
    worker = await cut.worker("w1", **FULL)
    before = await cut.ask(request_id="r")
    await cut.first.until(lambda: cut.first.machine.waiting == 1)
    async with cut.cut_off():
        await cut.second.until(lambda: cut.second.serves)
        terms = await heard_orders(bus)
        await cut.second.until_claimed(worker)
        inbox = await cut.ask(request_id="r")
        await worker.say("heartbeat", **ROOM)
        dispatch = await worker.next_dispatch()
    await cut.first.until(lambda: not cut.first.leads and not cut.first.serves)
    await worker.say("heartbeat", **ROOM)
    await worker.finish(dispatch)
    await inbox.done()
    await cut.second.settle()
    await cut.first.settle()
    assert set(terms) == {cut.second.machine.term}
    assert worker.unread == (0, 0) and inbox.rest() == []
    assert {message.status for message in before.rest_of_status()} == {"queued"}


@pytest.mark.parametrize("seconds", [0.3, 1.5])
async def test_a_leader_that_was_cut_off_and_not_overtaken_goes_on_with_what_came_meanwhile(
    cut: Cut, seconds: float
) -> None:
    worker = await cut.worker("w1")
    term = cut.first.machine.term
    async with cut.cut_off(seconds):
        inbox = await cut.ask(request_id="r")
    dispatch = await worker.next_dispatch()
    assert dispatch.attempt == cut.first.first_attempt
    await worker.finish(dispatch)
    await inbox.done()
    assert (cut.first.machine.term, cut.second.leads) == (term, False)
    assert worker.unread == (0, 0)


STRANGER = ControllerReport(
    id=ControllerId("c-9"), boot_id=BootId("b"), version="0.2.0", state="ready"
)
"""It does not answer either."""


def heartbeat_of(controller: ControllerReport) -> ControllerEvent:
    return ControllerEvent(type="heartbeat", controller=controller)


class SilentStore:
    """JetStream without a quorum: it does not answer."""

    async def read(self, *, timeout_s: float) -> LeaseEntry:
        await asyncio.sleep(timeout_s)
        raise BusError("no answer")

    async def write(self, value: bytes, *, after: int, ttl_s: int, timeout_s: float) -> int:
        raise AssertionError("it is read first")

    async def on_written(self, handler: Callable[[bytes], Awaitable[None]]) -> Subscription:
        raise AssertionError("this was done")


@pytest.mark.parametrize("answers", [True, False])
async def test_where_jetstream_does_not_answer_a_leader_that_was_away_asks_the_others(
    cut: Cut, bus: Bus, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await cut.worker("w1")
    leadership = cut.first.controller._leadership
    monkeypatch.setattr(leader, "_MAX_UNCONFIRMED_S", 1000.0)
    monkeypatch.setattr(leadership, "_store", SilentStore())
    if not answers:
        await bus.publish(subjects.controller_event(STRANGER.id), encode(heartbeat_of(STRANGER)))
        await cut.first.until(lambda: cut.first.hears(STRANGER.id))
    async with cut.cut_off(1.5):
        inbox = await cut.ask(request_id="r")
    if answers:
        await worker.finish(await worker.next_dispatch())
        await inbox.done()
    else:
        serving = cut.first.controller._leader
        assert serving is not None
        await cut.first.until(lambda: not serving._is_confirmed)
        assert not await leadership.others_stand_by()
        assert worker.unread == (0, 0)
    assert (cut.first.leads, cut.second.leads) == (True, False)


@pytest.mark.parametrize("how", ["it tells the term", "it refuses orders"])
async def test_who_learns_of_a_higher_term_leads_only_in_one_that_is_higher_still(
    cluster: Running, how: str
) -> None:
    term = cluster.machine.term + 2
    told: dict[str, Any] = {} if how == "it tells the term" else {"term": 0}
    worker = SimulatedWorker(cluster.bus, "w1", **told)
    worker.claim.accept(term, ControllerId("c-9"), BootId("b"))
    await worker.join()
    await cluster.until(lambda: cluster.serves and cluster.machine.term == term + 1)
    await cluster.until_claimed(worker)
    inbox = await cluster.ask(request_id="r")
    dispatch = await worker.next_dispatch()
    assert dispatch.attempt == cluster.first_attempt
    await worker.finish(dispatch)
    await inbox.done()
