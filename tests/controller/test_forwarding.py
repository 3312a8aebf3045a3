"""A request meets itself in one place, whichever controller takes it."""

from collections.abc import AsyncIterator

import pytest

from controller.ownership import rank_owners
from shared import subjects
from shared.bus import Bus, Message
from shared.messages.stream import Done
from shared.settings.tree import Nats
from tests.controller.pair import (
    DEAD,
    FIRST,
    SECOND,
    Pair,
    ids_owned_by,
    running_pair,
    say_controller,
    until_known,
)
from tests.controller.running import CONTROLLER, Running, accepted, failed

pytestmark = pytest.mark.anyio

BOTH = (DEAD, CONTROLLER)
_MANY = 16  # a server that gave each pair of messages to one controller would do so by chance


@pytest.fixture
async def pair(nats_settings: Nats, bus: Bus) -> AsyncIterator[Pair]:
    async with running_pair(nats_settings, bus) as controllers:
        yield controllers


async def test_a_repeated_id_is_accepted_and_dispatched_once_by_its_owner(pair: Pair) -> None:
    worker = await pair.worker("w1")
    ids = [*ids_owned_by(FIRST, SECOND, count=_MANY), *ids_owned_by(SECOND, FIRST, count=_MANY)]
    for request_id in ids:
        inboxes = [await pair.ask(request_id=request_id) for _ in range(2)]
        first, again = [accepted(await inbox.next()) for inbox in inboxes]
        assert (first.request_id, first.seed) == (again.request_id, again.seed)
        assert (await worker.next_dispatch()).request_id == request_id
    await pair.settle()
    assert pair.accepted == [_MANY, _MANY]
    assert worker.unread == (0, 0)


async def test_the_owner_follows_what_another_took_in(pair: Pair) -> None:
    worker = await pair.worker("w1")
    for owner, other in ((FIRST, SECOND), (SECOND, FIRST)):
        for request_id in ids_owned_by(owner, other, count=4):
            inbox = await pair.ask(request_id=request_id)
            accepted(await inbox.next())
            dispatch = await worker.next_dispatch()
            state = await pair.state(request_id)
            assert (state.state, state.controller, state.worker) == ("running", owner, "w1")
            await worker.finish(dispatch, owner)
            assert isinstance(await inbox.next(), Done)
    await pair.until_each(lambda controller: controller.report().completed_requests == 4)


async def test_the_turns_of_a_session_meet_whatever_their_ids(pair: Pair) -> None:
    await pair.worker("w1")
    for turn in range(_MANY):
        inbox = await pair.ask(session_id="s", request_id=f"turn-{turn}")
        accepted(await inbox.next())
    await pair.settle()
    assert sorted(pair.accepted) == [0, _MANY]


async def test_a_request_without_an_id_stays_where_it_came_in(pair: Pair) -> None:
    await pair.worker("w1")
    for _ in range(4 * _MANY):
        accepted(await (await pair.ask()).next())
    assert sum(pair.accepted) == 4 * _MANY and min(pair.accepted) > 0


async def test_a_conflict_is_found_whichever_controller_takes_the_other_body(pair: Pair) -> None:
    worker = await pair.worker("w1")
    for request_id in ids_owned_by(FIRST, SECOND, count=_MANY):
        inbox = await pair.ask(request_id=request_id)
        accepted(await inbox.next())
        other = await pair.ask(request_id=request_id, max_tokens=3)
        end = failed(await other.next())
        assert (end.error.code, end.request_id) == ("request_id_conflict", request_id)
        assert (await worker.next_dispatch()).request_id == request_id
    await pair.settle()
    assert worker.unread == (0, 0)


# Owners that are gone.


async def test_the_next_in_rank_takes_what_a_dead_owner_would_have_got(
    pair: Pair, bus: Bus
) -> None:
    worker = await pair.worker("w1")
    await say_controller(bus, DEAD)
    for running in pair.controllers:
        await until_known(running, DEAD)
    for request_id in ids_owned_by(DEAD, SECOND, FIRST, count=_MANY):
        for _ in range(2):
            accepted(await (await pair.ask(request_id=request_id)).next())
        assert (await worker.next_dispatch()).request_id == request_id
    await pair.settle()
    assert (pair.accepted, worker.unread) == ([0, _MANY], (0, 0))


async def test_who_takes_a_request_of_a_dead_owner_keeps_it_when_it_is_the_next(
    cluster: Running, bus: Bus
) -> None:
    await cluster.worker("w1")
    await say_controller(bus, DEAD)
    await until_known(cluster, DEAD)
    (request_id,) = ids_owned_by(DEAD, FIRST, count=1)
    accepted(await (await cluster.ask(request_id=request_id)).next())


async def test_a_turn_of_a_dead_owner_waits_until_it_is_known_to_be_gone(
    cluster: Running, bus: Bus
) -> None:
    """By then the turns before it are adopted."""
    await cluster.worker("w1")
    await say_controller(bus, DEAD)
    await until_known(cluster, DEAD)
    session = next(
        s for s in map(str, range(99)) if rank_owners(f"local/session/{s}", BOTH)[0] == DEAD
    )
    inbox = await cluster.ask(session_id=session)
    with pytest.raises(TimeoutError):
        await inbox.next(limit_s=0.5)
    await say_controller(bus, DEAD, "left")
    accepted(await inbox.next())


@pytest.mark.parametrize("how", ["it left", "it drains"])
async def test_an_owner_that_takes_nothing_new_is_not_asked(
    cluster: Running, bus: Bus, how: str
) -> None:
    asked: list[Message] = []

    async def note(message: Message) -> None:
        asked.append(message)

    await bus.subscribe(subjects.controller_infer(DEAD), note)
    await cluster.worker("w1")
    await say_controller(bus, DEAD)
    await until_known(cluster, DEAD)
    if how == "it left":
        await say_controller(bus, DEAD, "left")
    else:
        await say_controller(bus, DEAD, "state_changed", state="draining")
    for request_id in ids_owned_by(DEAD, FIRST, count=3):
        accepted(await (await cluster.ask(request_id=request_id)).next())
    assert asked == []


async def test_what_a_silent_owner_may_have_is_left_to_the_client_to_publish_again(
    cluster: Running, bus: Bus
) -> None:
    asked: list[Message] = []

    async def keep_silent(message: Message) -> None:
        asked.append(message)

    await bus.subscribe(subjects.controller_infer(DEAD), keep_silent)
    await cluster.worker("w1")
    await say_controller(bus, DEAD)
    await until_known(cluster, DEAD)
    (request_id,) = ids_owned_by(DEAD, FIRST, count=1)
    inbox = await cluster.ask(request_id=request_id)
    with pytest.raises(TimeoutError):
        await inbox.next(limit_s=1.0)
    assert (len(asked), cluster.controller.report().accepted_requests) == (1, 0)
    await say_controller(bus, DEAD, "left")
    await cluster.send(inbox, request_id=request_id)
    assert accepted(await inbox.next()).request_id == request_id
