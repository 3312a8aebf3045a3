"""A controller that was out of touch, or leaves: what no worker has yet goes on elsewhere."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

import pytest

from shared.bus import Bus
from shared.ids import ControllerId
from shared.messages.stream import Done, Usage
from shared.settings.tree import Nats
from tests.controller.pair import (
    FIRST,
    SECOND,
    Pair,
    ids_owned_by,
    running_pair,
    sessions_of,
    until_known,
)
from tests.controller.running import Inbox, Running, accepted, running_controller
from tests.controller.simulated_worker import SimulatedWorker, keep_silent, spoken
from tests.controller.test_adoption import held, hold
from tests.nats_proxy import NatsProxy

pytestmark = pytest.mark.anyio

LIMIT_S = 20
FULL = {"active_requests": 8, "queued_requests": 10}
ROOM = {"active_requests": 0, "queued_requests": 0}
FAILOVER = {"heartbeat_interval_ms": 100, "missed_heartbeats": 100}
WAITING_ROOM = {"max_wait_ms": 60_000}
OWNED_BY_FIRST = ids_owned_by(FIRST, SECOND, count=2)


def controller(
    nats: Nats, bus: Bus, name: ControllerId
) -> contextlib.AbstractAsyncContextManager[Running]:
    return running_controller(nats, bus, name=name, failover=FAILOVER, waiting_room=WAITING_ROOM)


class Cut(Pair):
    """A pair whose first controller is behind a line."""

    def __init__(self, first: Running, second: Running, line: NatsProxy) -> None:
        super().__init__(first, second)
        self.line = line

    @contextlib.asynccontextmanager
    async def cut_off(self, seconds: float) -> AsyncIterator[None]:
        """The first one, for so long; what is done meanwhile reaches it late."""
        began = time.monotonic()
        self.line.stall()
        yield
        await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
        self.line.resume()


@pytest.fixture
async def cut(nats_settings: Nats, bus: Bus) -> AsyncIterator[Cut]:
    async with (
        NatsProxy(nats_settings.servers[0]) as line,
        controller(Nats(servers=[line.url]), bus, FIRST) as first,
        controller(nats_settings, bus, SECOND) as second,
    ):
        for one in (first, second):
            await until_known(one, FIRST, SECOND)
        yield Cut(first, second, line)


async def send_to_first(bus: Bus, request_id: str) -> Inbox:
    """As another controller sends what the first one owns."""
    return await send_to(FIRST, bus, request_id, hops=1)


async def send_to(controller: ControllerId, bus: Bus, request_id: str, hops: int) -> Inbox:
    inbox = await Inbox(bus, bus.new_inbox()).open()
    message = {
        "client": "local", "skill": "chat", "reply": inbox.subject, "elapsed_ms": 0, "hops": hops,
        "request": {"prompt": "x", "request_id": request_id},
    }  # fmt: skip
    await bus.publish(f"mlx.controller.{controller}.infer", json.dumps(message).encode())
    return inbox


# Out of touch.


async def test_what_came_late_goes_to_who_may_have_been_asked_since(cut: Cut, bus: Bus) -> None:
    worker = await cut.worker("w1")
    known, unknown = OWNED_BY_FIRST
    async with cut.cut_off(1.5):
        await send_to_first(bus, known)
        await send_to_first(bus, unknown)
        again = await cut.ask(request_id=known)
    assert accepted(await again.next()).request_id == known
    assert {(await worker.next_dispatch()).request_id for _ in range(2)} == {known, unknown}
    await cut.settle()
    assert (cut.accepted, worker.unread) == ([0, 2], (0, 0))


async def test_what_came_late_is_served_where_nobody_else_could_have_been_asked(
    nats_settings: Nats, bus: Bus
) -> None:
    async with (
        NatsProxy(nats_settings.servers[0]) as line,
        controller(Nats(servers=[line.url]), bus, FIRST) as alone,
    ):
        worker = await alone.worker("w1")
        line.stall()
        await send_to_first(bus, "r")
        await asyncio.sleep(1.5)
        line.resume()
        assert (await worker.next_dispatch()).request_id == "r"


async def test_what_waited_for_room_meanwhile_another_one_has_dispatched_once(
    cut: Cut, bus: Bus
) -> None:
    worker = await cut.worker("w1")
    await worker.say("heartbeat", **FULL)
    await cut.until_each(lambda one: one._registry.workers[0].report.queued_requests == 10)
    (name, _) = OWNED_BY_FIRST
    inbox = await send_to_first(bus, name)
    accepted(await inbox.next())
    first = cut.controllers[0]
    await first.until(lambda: first.controller.report().waiting_requests == 1)
    async with cut.cut_off(2.5):
        pass
    await worker.say("heartbeat", **ROOM)
    dispatch = await worker.next_dispatch()
    assert (dispatch.request_id, dispatch.inboxes) == (name, [inbox.subject])
    await cut.settle()
    assert (cut.accepted, worker.unread) == ([1, 1], (0, 0))
    assert [one.controller.report().active_requests for one in cut.controllers] == [0, 1]


async def test_who_was_cut_off_for_a_moment_serves_what_waits_itself(cut: Cut, bus: Bus) -> None:
    worker = await cut.worker("w1")
    await worker.say("heartbeat", **FULL)
    await cut.until_each(lambda one: one._registry.workers[0].report.queued_requests == 10)
    await send_to_first(bus, OWNED_BY_FIRST[0])
    first = cut.controllers[0]
    await first.until(lambda: first.controller.report().waiting_requests == 1)
    async with cut.cut_off(0.7):
        pass
    await worker.say("heartbeat", **ROOM)
    await worker.next_dispatch()
    assert cut.accepted == [1, 0]


@pytest.mark.parametrize("away", [(FIRST,), (SECOND,), (FIRST, SECOND)])
@pytest.mark.parametrize("order", [(FIRST, SECOND), (SECOND, FIRST)])
async def test_copies_of_a_request_meet_where_some_or_all_were_away(
    pair: Pair, bus: Bus, away: tuple[ControllerId, ...], order: tuple[ControllerId, ...]
) -> None:
    """The host stood still, and the client asked again: each controller finds a copy."""
    worker = await pair.worker("w1")
    (name,) = OWNED_BY_FIRST[:1]
    for one in pair.controllers:
        if one.controller.id in away:
            link = one.controller._link
            link._gap_s, link.away_at = 1.5, time.monotonic()
    inboxes = [await send_to(controller, bus, name, hops=0) for controller in order]
    for inbox in inboxes:
        assert accepted(await inbox.next()).request_id == name
    dispatch = await worker.next_dispatch()
    await pair.settle()
    assert sum(pair.accepted) == 1 and worker.unread == (0, 0)
    owner = FIRST if FIRST not in away or len(away) == 2 else SECOND
    assert (await pair.query("status", dispatch.request_id)).controller == owner


# Turns of a session whose owner changes.


async def test_a_turn_goes_where_the_turns_before_it_are(nats_settings: Nats, bus: Bus) -> None:
    sessions = sessions_of(FIRST, 8)
    async with controller(nats_settings, bus, SECOND) as second:
        await second.worker("w1")
        for name in sessions:
            accepted(await (await second.ask(session_id=name)).next())
        async with controller(nats_settings, bus, FIRST) as first:
            for one in (first, second):
                await until_known(one, FIRST, SECOND)
            for name in sessions:
                turn = await second.ask(session_id=name, request_id=f"next-of-{name}")
                accepted(await turn.next())
                state = await second.query("status", f"next-of-{name}")
                assert (state.controller, state.state) == (SECOND, "accepted"), "it waits there"
            other = await second.ask(
                session_id=sessions_of(FIRST, 9)[-1], request_id="of-a-new-one"
            )
            accepted(await other.next())
            assert (await second.query("status", "of-a-new-one")).controller == FIRST


# Leaving.


@pytest.fixture
async def pair(nats_settings: Nats, bus: Bus) -> AsyncIterator[Pair]:
    async with running_pair(nats_settings, bus) as pair:
        yield pair


async def turn_of(pair: Pair, session: str, name: str) -> Inbox:
    inbox = await pair.ask(session_id=session, request_id=name)
    accepted(await inbox.next())
    return inbox


async def begun(pair: Pair, worker: SimulatedWorker, name: str) -> None:
    """Return when the first controller knows that the worker has it; so does who asks it."""
    dispatch = await worker.next_dispatch()
    await pair.state(name)
    hold(worker, held(name, session_id=dispatch.request.session_id), owner=FIRST)


async def test_who_leaves_leaves_what_runs_and_hands_over_what_waits(pair: Pair) -> None:
    worker = await pair.worker("w1")
    (session,) = sessions_of(FIRST, 1)
    inboxes = [await turn_of(pair, session, f"turn-{number}") for number in range(3)]
    await begun(pair, worker, "turn-0")
    first, second = pair.controllers
    first.stop.request()
    await asyncio.wait_for(first.task, LIMIT_S)
    await first.controller._bus.close()
    await second.until(lambda: second.controller.report().active_requests == 3)
    for number, inbox in enumerate(inboxes):
        state = await second.query("status", f"turn-{number}")
        assert state.controller == SECOND
        if number:
            dispatch = await worker.next_dispatch()
            assert (dispatch.request_id, dispatch.attempt) == (f"turn-{number}", 0)
            await worker.finish(dispatch, SECOND)
            while not isinstance(await inbox.next(), Done):
                pass
        else:
            assert worker.unread == (0, 0), "no turn begins before the one before has ended"
            await worker.finish_unheard(held("turn-0", session_id=session).dispatch, SECOND)
    await second.until(lambda: second.controller.report().active_requests == 0)
    assert second.controller.report().failed_requests == 0
    assert first.controller.report().failed_requests == 0


async def test_a_turn_stays_until_the_one_before_has_found_another_worker(pair: Pair) -> None:
    """Nobody else hears of a turn whose worker ends as its controller leaves."""
    worker, other = await pair.worker("w1"), await pair.worker("w2")
    await other.say("heartbeat", active_requests=5)
    (session,) = sessions_of(FIRST, 1)
    for number in range(2):
        await turn_of(pair, session, f"turn-{number}")
    assert (await worker.next_dispatch()).request_id == "turn-0"
    await pair.state("turn-0")
    first, second = pair.controllers
    first.stop.request()
    await second.until(lambda: FIRST not in second.controller._registry.ready_controllers)
    await worker.vanish()
    dispatch = await other.next_dispatch()
    assert (dispatch.request_id, dispatch.attempt) == ("turn-0", 1)
    await second.settle()
    assert second.controller.report().active_requests == 0
    hold(other, held("turn-0", attempt=1, session_id=session), owner=FIRST)
    assert (await other.next_adopted()).owner == SECOND
    await asyncio.wait_for(first.task, LIMIT_S)
    assert second.controller.report().active_requests == 2
    assert other.unread == (0, 0), "it waits there too"
    await other.finish(dispatch, SECOND)
    assert (await other.next_dispatch()).request_id == "turn-1"


async def test_the_prompts_of_a_list_still_go_to_workers(cut: Cut) -> None:
    """A list is its controller's alone."""
    worker = await cut.worker("w1")
    await worker.say("heartbeat", **FULL)
    await cut.until_each(lambda one: one._registry.workers[0].report.queued_requests == 10)
    inbox = await cut.ask(prompt=["a", "b"], request_id=OWNED_BY_FIRST[0])
    accepted(await inbox.next())
    first, _ = cut.controllers
    await first.until(lambda: first.controller.report().waiting_requests == 2)
    first.stop.request()
    await asyncio.sleep(0.3)
    assert not first.task.done()
    await worker.say("heartbeat", **ROOM)
    for dispatch in [await worker.next_dispatch(), await worker.next_dispatch()]:
        await worker.speak(dispatch, FIRST, 0, 1)
        last = spoken(1, finish_reason="stop")
        await worker.end(dispatch, FIRST, last, usage=Usage(5, 1, 1))
    await asyncio.wait_for(first.task, LIMIT_S)
    assert first.controller.report().failed_requests == 0
    while not isinstance(await inbox.next(), Done):
        pass


async def test_an_attempt_that_is_under_way_is_waited_for(pair: Pair) -> None:
    worker = await pair.worker("w1")
    worker.answer = keep_silent
    inbox = await pair.ask(request_id=OWNED_BY_FIRST[0])
    accepted(await inbox.next())
    dispatch = await worker.next_dispatch()
    first, _ = pair.controllers
    first.stop.request()
    await asyncio.sleep(0.3)
    assert not first.task.done()
    hold(worker, held(OWNED_BY_FIRST[0]), owner=FIRST)
    await worker.acknowledge_late(dispatch)
    await asyncio.wait_for(first.task, LIMIT_S)
    await pair.controllers[1].settle()
    assert (worker.unread, inbox.rest()) == ((0, 0), [])
