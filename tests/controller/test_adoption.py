"""Requests of a controller that is gone are taken over by its successor, and by no one else."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.ownership import rank_owners
from shared import subjects
from shared.bus import Bus, Message
from shared.ids import BootId, ClientName, ControllerId, RequestId, SkillName
from shared.messages.codec import decode, encode
from shared.messages.control import (
    AdoptedRequest,
    AdoptRequest,
    Claim,
    RequestQuery,
    RequestState,
    RequestStateName,
)
from shared.messages.dispatch import Continuation, Dispatch, ForwardedRequest, ForwardReply
from shared.messages.events import RequestAdopted, RequestEvents, RequestFailed
from shared.messages.request import InferenceRequest
from shared.settings.tree import Nats
from tests.controller.pair import (
    DEAD,
    FIRST,
    SECOND,
    Pair,
    ids_owned_by,
    running_pair,
    say_controller,
    sessions_of,
    stop_listening,
    until_known,
)
from tests.controller.running import (
    CONTROLLER,
    Inbox,
    Running,
    accepted,
    forward,
    running_controller,
    running_state,
)
from tests.controller.simulated_worker import SimulatedWorker, keep_silent
from tests.controller.values import DEMO

pytestmark = pytest.mark.anyio

LOCAL = ClientName("local")
QUIET_S = 0.5
OURS = ids_owned_by(FIRST, SECOND, count=1)[0]
OWNED_BY_SECOND = ids_owned_by(SECOND, FIRST, count=3)


@pytest.fixture
async def pair(nats_settings: Nats, bus: Bus) -> AsyncIterator[Pair]:
    async with running_pair(nats_settings, bus) as pair:
        await say_controller(bus, DEAD, "joined")
        await pair.until_each(lambda one: DEAD in {c.id for c in one._registry.controllers})
        yield pair


def held(
    request_id: str,
    *token_ids: int,
    attempt: int = 0,
    failure: RequestFailed | None = None,
    **fields: Any,
) -> AdoptedRequest:
    """A request as a worker tells of it that has generated these tokens."""
    resume = Continuation(token_ids={0: list(token_ids)}, text_sent={0: 5}, first_token_ms=8.0)
    dispatch = Dispatch(
        request_id=RequestId(request_id),
        client=LOCAL,
        skill=SkillName("chat"),
        model=DEMO,
        attempt=attempt,
        inboxes=["_INBOX.x"],
        seed=77,
        elapsed_ms=1000.0,
        request=InferenceRequest.model_validate({"prompt": "x", **fields}),
        resume=resume if token_ids else None,
    )
    return AdoptedRequest(dispatch=dispatch, failure=failure)


def hold(worker: SimulatedWorker, *requests: AdoptedRequest, owner: ControllerId = DEAD) -> None:
    worker.held |= {each.dispatch.request_id: (each, owner) for each in requests}


def given_back(request_id: str, **fields: Any) -> RequestFailed:
    return RequestFailed(
        request_id=RequestId(request_id), client=LOCAL, attempt=0, code="engine_crashed",
        message="the engine ended", terminal_sent=False, **fields,
    )  # fmt: skip


async def running_beside_second(
    cluster: Running, bus: Bus, name: str = OURS
) -> tuple[SimulatedWorker, SimulatedWorker, Inbox]:
    """A request that runs at the first of two workers, and another controller, to which it may be
    left from now on."""
    await say_controller(bus, SECOND, "joined")
    await until_known(cluster, SECOND)
    worker, other = await cluster.worker("w1"), await cluster.worker("w2", active_requests=5)
    inbox = await cluster.ask(request_id=name)
    accepted(await inbox.next())
    await worker.next_dispatch()
    assert await running_state(cluster, name) == "running"

    async def take(message: Message) -> None:
        forwarded = decode(ForwardedRequest, message.payload)
        assert forwarded.if_unheard and forwarded.reply == inbox.subject
        await bus.publish(message.reply, encode(ForwardReply()))

    await bus.subscribe(subjects.controller_infer(SECOND), take)
    await bus.flush()
    return worker, other, inbox


async def second_tells(
    bus: Bus, message: Message, state: RequestStateName = "running", **fields: Any
) -> None:
    """What the other controller answers that knows the request it is asked for."""
    request_id = decode(RequestQuery, message.payload).request_id
    told = RequestState(request_id=request_id, state=state, controller=SECOND, **fields)
    await bus.publish(message.reply, encode(told))


async def die(bus: Bus) -> None:
    await say_controller(bus, DEAD, "left")


async def test_of_two_the_successor_takes_over_and_the_other_does_not(bus: Bus, pair: Pair) -> None:
    worker, other = await pair.worker("w1"), await pair.worker("w2")
    name = OWNED_BY_SECOND[0]
    hold(worker, held(name, 1, 2, 3))
    await die(bus)
    assert (await worker.next_adopted()).owner == SECOND
    await pair.until_each(lambda one: one.id != SECOND or one.report().adoptions == 1)
    state = await pair.query("status", name)
    assert (state.state, state.controller, state.worker) == ("running", SECOND, "w1")
    assert (state.attempt, state.tokens) == (0, 3)
    await worker.say("left")
    dispatch = await other.next_dispatch()
    assert (dispatch.request_id, dispatch.attempt, dispatch.seed) == (name, 1, 77)
    assert dispatch.resume is not None and dispatch.resume.token_ids == {0: [1, 2, 3]}
    assert dispatch.resume.first_token_ms == 8.0 and dispatch.elapsed_ms > 1000
    assert [one.controller.report().adoptions for one in pair.controllers] == [0, 1]


async def test_a_session_is_taken_over_by_who_gets_its_next_turn(bus: Bus, pair: Pair) -> None:
    worker = await pair.worker("w1")
    hold(worker, *(held(f"turn-{n}", 1, session_id=f"s-{n}") for n in range(8)))
    await die(bus)
    orders = [await worker.next_adopted() for _ in range(8)]
    counts = Counter(order.owner for order in orders)
    await pair.until_each(lambda one: one.report().adoptions == counts[one.id])
    for order in orders:
        name = f"next-of-{order.request_id}"
        await pair.ask(request_id=name, session_id=order.request_id.replace("turn", "s"),
                       messages=[{"role": "user", "content": "x"}], prompt=None,
                       history="sent")  # fmt: skip
        await pair.settle()
        state = await pair.query("status", name)
        assert state.controller == order.owner
        assert (await pair.query("status", order.request_id)).controller == order.owner
        assert state.state == "accepted", "it waits for the one before"


async def test_what_the_worker_says_after_it_told_is_added_and_its_end_is_the_end(
    bus: Bus, pair: Pair
) -> None:
    worker = await pair.worker("w1")
    name = OWNED_BY_SECOND[0]
    adopted = held(name, 1, 2)

    async def speak(order: AdoptRequest) -> None:
        await worker.emit(adopted.dispatch, order.owner, 2, 3)  # comes before the answer

    worker.before_adopted = speak
    hold(worker, adopted)
    await die(bus)
    await worker.next_adopted()
    await worker.emit(adopted.dispatch, SECOND, 3, 4)
    await pair.until_each(lambda one: one.id != SECOND or one.report().adoptions == 1)
    await pair.settle()
    assert (await pair.query("status", name)).tokens == 4
    await worker.finish_unheard(adopted.dispatch, SECOND)
    await pair.until_each(lambda one: one.id != SECOND or one.report().completed_requests == 1)


async def test_what_a_controller_leaves_is_not_left_to_its_own_next_boot(
    bus: Bus, pair: Pair
) -> None:
    """That knows of it only later, and gets the next turns at once."""
    worker = await pair.worker("w1")
    (owned,) = ids_owned_by(DEAD, FIRST, SECOND, count=1)
    hold(worker, held(owned, 1, 2, 3))
    await say_controller(bus, DEAD, "joined", boot="b2")
    adopter = (await worker.next_adopted()).owner
    assert adopter == rank_owners(f"local/request/{owned}", [FIRST, SECOND])[0]


async def test_what_was_given_back_to_the_dead_goes_on_at_once(bus: Bus, pair: Pair) -> None:
    worker, other = await pair.worker("w1"), await pair.worker("w2")
    name = OWNED_BY_SECOND[0]
    hold(worker, held(name, 1, 2, failure=given_back(name)))
    await die(bus)
    dispatch = await other.next_dispatch()
    assert (dispatch.request_id, dispatch.attempt) == (name, 1)
    assert dispatch.resume is not None and dispatch.resume.token_ids == {0: [1, 2]}


async def test_of_two_workers_that_tell_of_a_request_the_later_attempt_counts(
    bus: Bus, pair: Pair
) -> None:
    first, second = await pair.worker("w1"), await pair.worker("w2")
    name = OWNED_BY_SECOND[0]
    hold(first, held(name, 1, failure=given_back(name)))
    hold(second, held(name, 1, 2, attempt=1))
    await die(bus)
    await second.next_adopted()
    await pair.settle()
    assert name in first.held
    state = await pair.query("status", name)
    assert (state.worker, state.attempt, state.tokens) == ("w2", 1, 2)


async def test_requests_of_those_who_live_stay_theirs(bus: Bus, pair: Pair) -> None:
    worker = await pair.worker("w1")
    hold(worker, held(OWNED_BY_SECOND[0], 1, 2), owner=FIRST)
    await die(bus)
    await pair.settle()
    await pair.settle()
    assert len(worker.held) == 1
    assert [one.controller.report().adoptions for one in pair.controllers] == [0, 0]


async def test_who_was_thought_dead_lets_go_without_a_word(cluster: Running, bus: Bus) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.ask(request_id="r", timeout_ms=60_000)
    await inbox.next()
    dispatch = await worker.next_dispatch()
    assert await running_state(cluster, "r") == "running"
    event = RequestAdopted(
        request_id=RequestId("r"), client=LOCAL, attempt=dispatch.attempt, owner=SECOND
    )
    body = RequestEvents(worker=worker.id, boot_id=worker.boot, events=[event])
    await bus.publish(f"mlx.event.request.{CONTROLLER}", encode(body))
    await cluster.until(lambda: cluster.controller.report().active_requests == 0)
    assert cluster.controller._requests.find((LOCAL, RequestId("r"))) is None
    await worker.say("left")
    await cluster.settle()
    assert inbox.rest() == []
    report = cluster.controller.report()
    assert (report.failed_requests, report.completed_requests) == (0, 0)


async def test_who_was_thought_dead_lets_go_of_what_was_given_back_to_it_meanwhile(
    cluster: Running, bus: Bus
) -> None:
    await say_controller(bus, SECOND, "joined")
    await until_known(cluster, SECOND)
    worker, other = await cluster.worker("w1"), await cluster.worker("w2", active_requests=5)
    await cluster.ask(request_id=OURS)
    await worker.next_dispatch()
    assert await running_state(cluster, OURS) == "running"
    link = cluster.controller._link
    link._back_at = time.monotonic() - 5  # it was stopped, and finds all that in its buffers
    assert link.out_of_touch
    adopted = RequestAdopted(request_id=RequestId(OURS), client=LOCAL, attempt=0, owner=SECOND)
    for event in (given_back(OURS), adopted):
        body = RequestEvents(worker=worker.id, boot_id=worker.boot, events=[event])
        await bus.publish(f"mlx.event.request.{CONTROLLER}", encode(body))
    await cluster.until(lambda: cluster.controller.report().active_requests == 0)
    await cluster.until(lambda: not link.out_of_touch)
    await cluster.settle()
    assert other.unread == (0, 0)


@pytest.mark.parametrize("adopted", [True, False])
async def test_who_was_away_asks_before_it_goes_on_with_what_others_may_have_adopted(
    cluster: Running, bus: Bus, adopted: bool
) -> None:
    worker, other, inbox = await running_beside_second(cluster, bus)

    async def answer(message: Message) -> None:
        await second_tells(bus, message)

    if adopted:
        await bus.subscribe("mlx.request.local.status", answer)
        await bus.flush()
    cluster.controller._link.away_at = time.monotonic()
    await worker.say("left")
    if adopted:
        await cluster.until(lambda: cluster.controller.report().active_requests == 0)
        await cluster.settle()
        assert (other.unread, inbox.rest()) == ((0, 0), [])
    else:
        assert (await other.next_dispatch()).attempt == 1


@pytest.mark.parametrize("adopted", [True, False])
async def test_also_who_was_looking_for_the_next_worker_asks(
    cluster: Running, bus: Bus, adopted: bool
) -> None:
    worker, other, inbox = await running_beside_second(cluster, bus)
    other.answer = keep_silent
    await worker.say("left")
    dispatch = await other.next_dispatch()
    assert dispatch.attempt == 1
    asked = asyncio.Event()

    async def answer(message: Message) -> None:
        asked.set()
        if adopted:
            await second_tells(bus, message)

    await bus.subscribe("mlx.request.local.status", answer)
    third = await cluster.worker("w3", active_requests=6)
    cluster.controller._link.away_at = time.monotonic()
    await other.vanish()
    await other.say("left")
    await asyncio.wait_for(asked.wait(), 10)
    if adopted:
        await cluster.until(lambda: cluster.controller.report().active_requests == 0)
        await cluster.settle()
        assert (third.unread, inbox.rest()) == ((0, 0), [])
    else:
        assert (await third.next_dispatch()).attempt == 2
    loads = {view.id: view.load for view in cluster.controller._registry.workers}
    assert loads == {"w3": 6 if adopted else 7}


async def test_of_two_that_are_not_sure_one_keeps_it(cluster: Running, bus: Bus) -> None:
    """The other one tells that it has it, and then hands it over."""
    worker, other, inbox = await running_beside_second(cluster, bus)

    async def answer(message: Message) -> None:
        await second_tells(bus, message, "accepted")
        await forward(cluster, inbox.subject, hops=2, request_id=OURS)

    await bus.subscribe("mlx.request.local.status", answer)
    await bus.flush()
    cluster.controller._link.away_at = time.monotonic()
    await worker.say("left")
    assert (await other.next_dispatch()).attempt == 1


@pytest.mark.parametrize(
    ("rank", "claim", "attempt", "kept"),
    [
        (FIRST, "begun", 0, True),
        (SECOND, "begun", 0, False),
        (FIRST, "begun", 1, False),
        (SECOND, "waiting", 0, True),
    ],
)
async def test_of_two_that_both_stood_still_the_one_that_came_furthest_keeps_it(
    cluster: Running, bus: Bus, rank: ControllerId, claim: Claim, attempt: int, kept: bool
) -> None:
    (name,) = ids_owned_by(*((FIRST, SECOND) if rank == FIRST else (SECOND, FIRST)), count=1)
    worker, other, inbox = await running_beside_second(cluster, bus, name)

    async def answer(message: Message) -> None:
        await second_tells(bus, message, claim=claim, attempt=attempt)

    await bus.subscribe("mlx.request.local.status", answer)
    await bus.flush()
    cluster.controller._link.away_at = time.monotonic()
    await worker.say("left")
    if kept:
        assert (await other.next_dispatch()).attempt == 1
    else:
        await cluster.until(lambda: cluster.controller.report().active_requests == 0)
        await cluster.settle()
        assert (other.unread, inbox.rest()) == ((0, 0), [])


async def test_who_was_away_says_so_to_those_who_ask(cluster: Running, bus: Bus) -> None:
    await running_beside_second(cluster, bus)
    assert (await cluster.query("status", OURS)).claim == "certain"
    cluster.controller._link.away_at = time.monotonic()
    assert (await cluster.query("status", OURS)).claim == "begun"


async def test_the_turns_behind_one_that_was_adopted_go_to_who_has_it(bus: Bus, pair: Pair) -> None:
    worker = await pair.worker("w1")
    (session,) = sessions_of(FIRST, 1)
    for name in ("turn-0", "turn-1", "turn-2"):
        accepted(await (await pair.ask(request_id=name, session_id=session)).next())
    dispatch = await worker.next_dispatch()
    assert (await pair.state("turn-0")).controller == FIRST
    hold(worker, held("turn-0", session_id=session), owner=FIRST)
    second = pair.controllers[1].controller
    (running,) = await second._adoption._list(worker.id)
    await second._adoption._adopt(worker.id, running)  # it took the first one for gone
    await pair.until_each(
        lambda one: one.report().active_requests == (3 if one.id == SECOND else 0)
    )
    assert worker.unread == (0, 0), "they wait for the one before"
    await worker.finish(dispatch, SECOND)
    assert (await worker.next_dispatch()).request_id == "turn-1"


@pytest.mark.parametrize("owner", [CONTROLLER, DEAD])
async def test_a_controller_that_starts_takes_over_what_nobody_else_does(
    nats_settings: Nats, bus: Bus, owner: ControllerId
) -> None:
    worker = SimulatedWorker(bus, "w1")
    hold(worker, held("r", 1, 2), owner=owner)
    failover = {"heartbeat_interval_ms": 100, "missed_heartbeats": 5}
    async with running_controller(nats_settings, bus, failover=failover) as cluster:
        await worker.join()
        beats = asyncio.create_task(_beat(worker))
        assert (await worker.next_adopted()).owner == CONTROLLER
        await cluster.until(lambda: cluster.controller.report().adoptions == 1)
        assert (await cluster.query("status", "r")).state == "running"
        beats.cancel()


async def test_a_request_that_its_client_asked_for_again_is_ours_already(
    bus: Bus, pair: Pair
) -> None:
    worker = await pair.worker("w1")
    name = OWNED_BY_SECOND[0]
    await pair.ask(request_id=name)
    await worker.next_dispatch()
    assert (await pair.state(name)).controller == SECOND
    hold(worker, held(name, 1, 2))
    await die(bus)
    await pair.settle()
    await pair.settle()
    assert len(worker.held) == 1


async def test_a_worker_that_does_not_tell_keeps_nobody_else_from_it(bus: Bus, pair: Pair) -> None:
    silent, worker = await pair.worker("w1"), await pair.worker("w2")
    await silent.vanish()
    hold(worker, held(OWNED_BY_SECOND[0], 1, 2))
    await die(bus)
    assert (await worker.next_adopted()).owner == SECOND


async def _beat(worker: SimulatedWorker) -> None:
    while True:
        await worker.say("heartbeat", boot_id=BootId("b1"))
        await asyncio.sleep(0.1)


# Found out.


async def test_who_nobody_hears_of_any_more_is_adopted_before_it_has_been_silent_for_long(
    bus: Bus, pair: Pair
) -> None:
    """In this pair silence would be noticed after 10 s."""
    worker = await pair.worker("w1")
    name = OWNED_BY_SECOND[0]
    hold(worker, held(name, 1, 2, 3))
    await stop_listening(bus, DEAD)
    assert (await worker.next_adopted()).owner == SECOND
    await pair.until_each(lambda one: DEAD not in {c.id for c in one._registry.controllers})


# Turns of sessions.


async def test_a_turn_that_comes_during_an_adoption_waits_for_the_turn_that_is_adopted(
    bus: Bus, pair: Pair
) -> None:
    worker = await pair.worker("w1")
    (session,) = sessions_of(SECOND, 1)
    before = held("before", 1, session_id=session)
    hold(worker, before)
    arrived = asyncio.Event()

    async def wait(_: AdoptRequest) -> None:
        inbox = await pair.ask(request_id="next", session_id=session)
        accepted(await inbox.next())
        arrived.set()

    worker.before_adopted = wait
    await die(bus)
    await worker.next_adopted()
    await arrived.wait()
    await pair.settle()
    assert worker.unread == (0, 0)
    await worker.finish(before.dispatch, SECOND)
    assert (await worker.next_dispatch()).request_id == "next"


async def test_who_begins_begins_no_turn_before_it_knows_of_the_one_before(
    nats_settings: Nats, bus: Bus
) -> None:
    worker = SimulatedWorker(bus, "w1")
    before = held("before", 1, session_id="s")
    hold(worker, before)
    async with running_controller(nats_settings, bus) as cluster:
        await worker.join()
        accepted(await (await cluster.ask(request_id="next", session_id="s")).next())
        assert (await worker.next_adopted()).owner == CONTROLLER
        await cluster.until(lambda: cluster.controller.report().adoptions == 1)
        await cluster.settle()
        assert worker.unread == (0, 0)
        await worker.finish(before.dispatch, CONTROLLER)
        assert (await worker.next_dispatch()).request_id == "next"


# Our own, of which we missed something.


@pytest.fixture
async def own(
    cluster: Running, monkeypatch: pytest.MonkeyPatch
) -> tuple[Running, SimulatedWorker, Dispatch]:
    """A request that runs at a worker."""
    monkeypatch.setattr("controller.requests._QUIET_S", QUIET_S)
    worker = await cluster.worker("w1")
    worker.tells_all = True
    await cluster.ask(request_id="r")
    dispatch = await worker.next_dispatch()
    assert await running_state(cluster, "r") == "running"
    return cluster, worker, dispatch


async def test_that_a_request_has_ended_is_learned_when_the_worker_has_it_no_more(
    own: tuple[Running, SimulatedWorker, Dispatch],
) -> None:
    cluster, _, _ = own
    await cluster.until(lambda: cluster.controller.report().completed_requests == 1)
    assert (await cluster.query("status", "r")).state == "finished"


async def test_what_the_worker_has_goes_on(
    own: tuple[Running, SimulatedWorker, Dispatch],
) -> None:
    cluster, worker, dispatch = own
    hold(worker, AdoptedRequest(dispatch=dispatch), owner=CONTROLLER)
    await asyncio.sleep(2 * QUIET_S)
    assert await running_state(cluster, "r") == "running"
    await worker.finish(dispatch, CONTROLLER)
    await cluster.until(lambda: cluster.controller.report().completed_requests == 1)


async def test_what_another_controller_has_adopted_unheard_is_its_own(
    own: tuple[Running, SimulatedWorker, Dispatch],
) -> None:
    cluster, worker, dispatch = own
    hold(worker, AdoptedRequest(dispatch=dispatch), owner=SECOND)
    await cluster.until(lambda: cluster.controller.report().active_requests == 0)
    assert cluster.controller._requests.find((LOCAL, RequestId("r"))) is None
    assert cluster.controller.report().completed_requests == 0


@pytest.mark.parametrize("known", [True, False])
async def test_what_its_worker_has_no_more_may_go_on_elsewhere_for_another_controller(
    own: tuple[Running, SimulatedWorker, Dispatch], bus: Bus, known: bool
) -> None:
    cluster, _, _ = own
    await say_controller(bus, SECOND, "joined")
    await until_known(cluster, SECOND)

    async def answer(message: Message) -> None:
        await second_tells(bus, message)

    if known:
        await bus.subscribe("mlx.request.local.status", answer)
        await bus.flush()
    cluster.controller._link.note_new_connection()
    await cluster.until(lambda: cluster.controller.report().active_requests == 0)
    assert cluster.controller.report().completed_requests == (not known)


async def test_another_boot_of_its_worker_says_nothing_of_it(
    own: tuple[Running, SimulatedWorker, Dispatch],
) -> None:
    cluster, worker, _ = own
    worker.boot = BootId("another")
    await asyncio.sleep(2 * QUIET_S)
    assert await running_state(cluster, "r") == "running"


async def test_what_came_back_unheard_is_tried_again(
    own: tuple[Running, SimulatedWorker, Dispatch],
) -> None:
    _, worker, dispatch = own
    hold(worker, AdoptedRequest(dispatch=dispatch, failure=given_back("r")), owner=CONTROLLER)
    again = await worker.next_dispatch()
    assert (again.request_id, again.attempt) == ("r", 1)
