"""Turns of a session that are asked while the one before is not yet answered."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from shared.client import Cluster, Completion
from shared.messages.stream import StatusMessage
from tests.shared.client.conftest import QUICK
from tests.shared.client.simulated_controller import MAC, SimulatedController, chunk, done

pytestmark = pytest.mark.anyio

_LONG_S = 0.3
"""Many looks of a turn at the one before it."""
_WAIT_S = 10


@pytest.fixture
async def asking(cluster: Cluster) -> AsyncIterator["Asking"]:
    asking = Asking(cluster)
    yield asking
    await asking.end()


class Asking:
    """Clients that each wait for the answer to a turn."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._tasks: list[asyncio.Task[Completion]] = []

    def ask(self, what: str, session_id: str | None = "s") -> "asyncio.Task[Completion]":
        task = asyncio.create_task(self._cluster.generate(what, session_id=session_id))
        self._tasks.append(task)
        return task

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_a_turn_is_asked_when_a_worker_has_the_one_before(
    asking: Asking, controller: SimulatedController
) -> None:
    asking.ask("one")
    first, first_id = await controller.next_request()
    asking.ask("two")
    await controller.send(first, StatusMessage(first_id, 0, None, "accepted", seed=5))
    await asyncio.sleep(_LONG_S)
    assert controller.requests.empty()
    await controller.send(first, chunk(first_id, 0, "On", 1))
    _, second_id = await controller.next_request()
    assert second_id != first_id


async def test_a_turn_whose_reader_waits_for_long_is_not_given_up(
    asking: Asking, controller: SimulatedController
) -> None:
    asking.ask("one")
    _, first_id = await controller.next_request()
    asking.ask("two")
    await asyncio.sleep(1.5 * QUICK.abandoned_s)
    while not controller.requests.empty():  # it may have been published again
        assert (await controller.next_request())[1] == first_id


async def test_turns_that_are_asked_at_once_come_one_after_the_other(
    asking: Asking, controller: SimulatedController
) -> None:
    turns = [asking.ask(what) for what in ("one", "two", "three")]
    for turn in turns:
        request, request_id = await controller.next_request()
        await asyncio.sleep(_LONG_S)
        assert controller.requests.empty() and not turn.done()
        await controller.send(request, chunk(request_id, 0, "yes", 1), done(request_id))
        assert (await asyncio.wait_for(turn, _WAIT_S)).text == "yes"


async def test_a_turn_that_fails_or_is_given_up_keeps_nobody_waiting(
    asking: Asking, controller: SimulatedController
) -> None:
    first = asking.ask("one")
    await controller.next_request()
    asking.ask("two")
    first.cancel()
    await controller.next_request()


async def test_other_sessions_and_requests_without_one_do_not_wait(
    asking: Asking, controller: SimulatedController
) -> None:
    asking.ask("one")
    await controller.next_request()
    asking.ask("another", session_id="t")
    await controller.next_request()
    asking.ask("none", session_id=None)
    await controller.next_request()


async def test_a_turn_that_nobody_reads_keeps_nobody_waiting_for_long(
    cluster: Cluster, asking: Asking, controller: SimulatedController
) -> None:
    unread = cluster.stream("one", session_id="s")
    asking.ask("two")  # nobody has begun to read: it was not asked
    _, second_id = await controller.next_request()
    async with cluster.stream("three", session_id="t") as begun:
        updates = begun.updates(at_least_every_s=0.05)
        assert await anext(updates) == []
        await controller.next_request()
        asking.ask("four", session_id="t")
        await controller.next_request()
    assert unread.request_id != second_id


async def test_who_waits_for_its_turn_says_so_as_often_as_is_wanted(
    cluster: Cluster, asking: Asking, controller: SimulatedController
) -> None:
    asking.ask("one")
    request, request_id = await controller.next_request()
    async with cluster.stream("two", session_id="s") as second:
        updates = second.updates(at_least_every_s=0.1)
        assert [await anext(updates) for _ in range(3)] == [[], [], []]
        assert controller.requests.empty()
        await controller.send(request, StatusMessage(request_id, 0, MAC, "queued"))
        while controller.requests.empty():
            assert await anext(updates) == []
