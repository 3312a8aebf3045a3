"""Several controllers of which one leads: what becomes of requests when another one follows."""

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

import pytest

from shared import subjects
from shared.bus import Bus
from shared.client import Cluster
from shared.codec import encode
from shared.errors import BusError
from shared.ids import BootId, ClientName, ControllerId, WorkerId
from shared.messages.controller_report import ControllerReport
from shared.messages.dispatch import Dispatch
from shared.messages.events import ControllerEvent
from shared.settings.nats import NatsSettings
from shared.version import PROTOCOL
from tests.access.roles import as_tester
from tests.controller.inbox import Inbox
from tests.controller.pair import FIRST, QUICK, SECOND, Pair, running_pair
from tests.controller.running import Running, running_controller
from tests.controller.simulated_worker import WAIT_S, SimulatedWorker, keep_silent
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio

THIRD = ControllerId("c-3")
FULL = {"active_requests": 8, "queued_requests": 10}
ROOM = {"active_requests": 0, "queued_requests": 0}
PATIENT_ROOM = {"max_wait_ms": 60_000}


@pytest.fixture
async def pair(nats_settings: NatsSettings, bus: Bus) -> AsyncIterator[Pair]:
    async with running_pair(nats_settings, bus, waiting_room=PATIENT_ROOM) as pair:
        yield pair


async def takes_over(one: Running, worker: SimulatedWorker) -> None:
    """Return when it leads, takes requests and has claimed the worker."""
    await one.until(lambda: one.serves)
    await one.until_claimed(worker)


async def told(standbys: Sequence[Running], term: int) -> list[ControllerId]:
    """Who leads, as all of them say when they know of the term."""
    for one in standbys:
        await one.until(functools.partial(knows_term, one, term))
    (known,) = {tuple(one.known_leaders) for one in standbys}
    return list(known)


def knows_term(one: Running, term: int) -> bool:
    return one.follows and one.controller.report().term == term


def holds(one: Running) -> bool:
    """It hears what clients publish, for the case that it leads in a moment."""
    return bool(one.controller._handler._subscriptions) and not one.serves


async def leader_of(several: Sequence[Running]) -> tuple[Running, Running]:
    """The one of two that leads, when one does, and the other one."""
    one, other = several
    await one.until(lambda: one.serves or other.serves)
    return (one, other) if one.serves else (other, one)


async def serve(worker: SimulatedWorker) -> Dispatch:
    """The next request, to its end."""
    dispatch = await worker.next_dispatch()
    await worker.finish(dispatch)
    return dispatch


async def is_answered(bus: Bus, subject: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(BusError):
                await bus.request(subject, b"", timeout_s=0.2)
                return


async def ends_once(inbox: Inbox, leader: Running) -> None:
    await inbox.done()
    await leader.settle()
    assert inbox.rest() == []


# Who leads.


async def test_one_of_three_leads_and_the_next_in_a_higher_term_whoever_that_is(
    nats_settings: NatsSettings, bus: Bus
) -> None:
    async with AsyncExitStack() as stack:
        names = (FIRST, SECOND, THIRD)
        several = [
            await stack.enter_async_context(
                running_controller(nats_settings, bus, name=name, failover=QUICK)
            )
            for name in names
        ]
        first, *others = several
        term = first.machine.term
        assert await told(others, term) == [FIRST]
        await first.leave()
        second, third = await leader_of(others)
        assert await told([third], term + 1) == [second.controller.id]
        await third.until(lambda: not holds(third))
        await second.die()
        await third.until(lambda: third.serves)
        assert third.machine.term == term + 2


@pytest.mark.parametrize("how", ["it dies", "its connection ends"])
async def test_when_the_leader_is_gone_without_a_word_another_one_serves(
    pair: Pair, how: str
) -> None:
    worker = await pair.worker("w1")
    await (pair.first.die() if how == "it dies" else pair.first.controller._bus.close())
    await takes_over(pair.second, worker)
    inbox = await pair.ask(request_id="r")
    dispatch = await serve(worker)
    assert dispatch.attempt == pair.second.first_attempt
    await ends_once(inbox, pair.second)


async def test_where_failover_is_off_nobody_overtakes_a_leader_whose_lease_has_not_expired(
    nats_settings: NatsSettings, bus: Bus
) -> None:
    patient = {**QUICK, "enabled": False}
    async with (
        running_controller(nats_settings, bus, name=FIRST, failover=patient) as first,
        running_controller(nats_settings, bus, name=SECOND, failover=patient) as second,
        running_controller(nats_settings, bus, name=THIRD, failover=QUICK) as third,
    ):
        await second.until(lambda: second.hears(FIRST) and second.hears(THIRD))
        await third.until(lambda: third.hears(FIRST))
        await first.die()
        await third.until(lambda: third.serves)
        assert not second.leads
        await third.leave()
        await second.until(lambda: second.serves)


async def test_a_leader_whose_server_was_away_goes_on_in_its_term(
    server: NatsProcess, own_bus: Bus
) -> None:
    async with running_pair(as_tester(server.url), own_bus) as pair:
        term = pair.first.machine.term
        worker = await pair.worker("w1")
        server.kill()
        await asyncio.to_thread(server.start)
        for connected in (own_bus, pair.first.controller._bus, pair.second.controller._bus):
            await connected.wait_connected()
        await is_answered(own_bus, subjects.HEALTH_CLUSTER)
        inbox = await pair.ask(request_id="r")
        await serve(worker)
        await ends_once(inbox, pair.first)
        assert (pair.first.machine.term, pair.second.leads) == (term, False)


async def test_without_jetstream_the_first_by_name_leads_alone_and_says_so(
    server: NatsProcess,
) -> None:
    server.kill()
    server.store = None
    await asyncio.to_thread(server.start)
    nats = as_tester(server.url)
    bus = await Bus.connect(nats, name="client", inbox_prefix="_INBOX.local", wait_s=10)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(bus.close)
        second, first = await asyncio.gather(
            *(
                stack.enter_async_context(running_controller(nats, bus, name=name, failover=QUICK))
                for name in (SECOND, FIRST)
            )
        )
        reports = [one.controller.report() for one in (first, second)]
        assert [report.leader for report in reports] == [True, False]
        for report in reports:
            assert report.state == "ready"
            assert report.leader_problem is not None
            assert "has no JetStream" in report.leader_problem
        worker = await first.worker("w1")
        inbox = await first.ask()
        await serve(worker)
        await ends_once(inbox, first)


@pytest.mark.parametrize("protocol", [0, 1, PROTOCOL - 1, PROTOCOL + 1])
async def test_controllers_and_workers_of_another_protocol_are_ignored_and_named(
    pair: Pair, bus: Bus, protocol: int
) -> None:
    worker = await pair.worker("w1")
    old = ControllerReport(
        id=ControllerId("c-0"), boot_id=BootId("b"), version="0.1.0", state="ready", leader=True
    )
    event = ControllerEvent(type="heartbeat", controller=old, protocol=protocol)
    await bus.publish(subjects.controller_event(old.id), encode(event))
    undecodable = {"protocol": protocol, "type": "joined", "worker": {"name": "w0"}}
    await bus.publish(subjects.worker_event(WorkerId("w0")), json.dumps(undecodable).encode())
    refused = pair.first.controller._refused
    await pair.first.until(lambda: refused.counts["other_protocol"] == 2)
    health = await Cluster(bus, ClientName("local")).health()
    assert [(each.kind, each.id, each.protocol) for each in health.ignored] == [
        ("controller", "c-0", protocol),
        ("worker", "w0", protocol),
    ]
    assert [each.id for each in health.controllers] == [FIRST, SECOND]
    assert [each.id for each in health.workers] == ["w1"]
    inbox = await pair.ask(request_id="r")
    await serve(worker)
    await ends_once(inbox, pair.first)


# What waits.


async def test_a_leader_that_leaves_transfers_what_no_worker_has_in_the_same_order(
    pair: Pair,
) -> None:
    worker = await pair.worker("w1", **FULL)
    inboxes = {name: await pair.ask(request_id=name) for name in ("c", "a", "b")}
    anonymous = await pair.ask()
    await pair.first.until(lambda: pair.first.machine.waiting == 4)
    await pair.first.leave()
    await takes_over(pair.second, worker)
    await pair.second.until(lambda: pair.second.machine.waiting == 4)
    await worker.say("heartbeat", **ROOM)
    served = [await serve(worker) for _ in range(4)]
    assert [dispatch.request_id for dispatch in served[:3]] == ["c", "a", "b"]
    assert {dispatch.attempt for dispatch in served} == {pair.second.first_attempt}
    for inbox in (*inboxes.values(), anonymous):
        await ends_once(inbox, pair.second)
    assert worker.unread == (0, 0)
    report = pair.second.controller.report()
    assert (report.accepted_requests, report.completed_requests) == (4, 4)
    assert pair.first.controller.report().failed_requests == 0


async def test_what_is_published_while_the_leader_leaves_is_served_once(pair: Pair) -> None:
    worker = await pair.worker("w1")
    pair.first.stop.request()
    inboxes: list[Inbox] = []
    while not pair.second.serves:
        inboxes.append(await pair.ask(request_id=f"r{len(inboxes)}"))
        await asyncio.sleep(0.002)
    await pair.second.until_claimed(worker)
    served = [await serve(worker) for _ in inboxes]
    assert {dispatch.request_id for dispatch in served} == {
        f"r{number}" for number in range(len(inboxes))
    }
    for inbox in inboxes:
        await ends_once(inbox, pair.second)
    await pair.first.ended()
    assert worker.unread == (0, 0)


async def test_what_is_published_to_a_standby_that_may_lead_soon_is_served_when_it_does(
    pair: Pair,
) -> None:
    worker = await pair.worker("w1")
    await pair.first.die()
    handler = pair.second.controller._handler
    await pair.second.until(lambda: bool(handler._subscriptions))
    await pair.second.settle()
    assert not pair.second.serves
    inbox = await pair.ask(request_id="r")
    await takes_over(pair.second, worker)
    assert (await serve(worker)).request_id == "r"
    await ends_once(inbox, pair.second)


async def test_what_a_dead_leader_had_is_served_when_it_is_published_again(pair: Pair) -> None:
    worker = await pair.worker("w1", **FULL)
    first = await pair.ask(request_id="r")
    await pair.first.until(lambda: pair.first.machine.waiting == 1)
    await pair.first.die()
    await takes_over(pair.second, worker)
    assert (await pair.query("status", "r")).state == "unknown"
    again = await pair.ask(request_id="r")
    await worker.say("heartbeat", **ROOM)
    assert (await serve(worker)).inboxes == [again.subject]
    await ends_once(again, pair.second)
    assert all(message.status == "queued" for message in first.rest_of_status())


async def test_a_leader_that_leaves_waits_for_an_offer_that_was_not_answered(pair: Pair) -> None:
    worker = await pair.worker("w1")
    worker.answer = keep_silent
    inbox = await pair.ask(request_id="r")
    dispatch = await worker.next_dispatch()
    pair.first.stop.request()
    await pair.second.until(lambda: pair.first.controller.state != "ready")
    await worker.acknowledge_late(dispatch)
    await pair.first.ended()
    await takes_over(pair.second, worker)
    await pair.second.until(lambda: pair.second.machine.active == 1)
    await worker.finish(dispatch)
    await ends_once(inbox, pair.second)
    assert worker.unread == (0, 0)
