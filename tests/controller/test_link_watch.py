"""While our own link to NATS does not work, nobody's silence means anything."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import pytest

from controller.link_watch import LinkWatch
from shared.bus import Bus
from tests.access.roles import as_tester
from tests.controller.running import CONTROLLER, running_controller
from tests.controller.simulated_worker import SimulatedWorker
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio

_INTERVAL_S = 0.05
_SILENCE_S = 1.0
_FAILOVER = {"heartbeat_interval_ms": 200, "missed_heartbeats": 5}  # 1 s of silence is too long
_A_TICK_S = 0.4
_WAIT_S = 20


@contextlib.asynccontextmanager
async def watching(bus: Bus) -> AsyncIterator[LinkWatch]:
    link = LinkWatch(bus, _INTERVAL_S)
    running = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def until(condition: Callable[[], bool]) -> None:
    """Poll: the link tells no one of its changes."""
    async with asyncio.timeout(_WAIT_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


async def trusted(link: LinkWatch, *, since: float = 0.0) -> float:
    """Return once the link is trusted, at the earliest since then."""
    await until(lambda: (link.trusted_since or -1.0) >= since)
    assert link.trusted_since is not None
    return link.trusted_since


async def test_a_link_that_works_is_trusted_since_it_first_did(own_bus: Bus) -> None:
    before = time.monotonic()
    async with watching(own_bus) as link:
        assert link.trusted_since is None
        since = await trusted(link)
        assert since >= before
        await asyncio.sleep(3 * _INTERVAL_S)
        assert link.trusted_since == since


async def test_a_link_that_stalls_is_not_trusted_until_it_works_again(
    server: NatsProcess, own_bus: Bus
) -> None:
    async with watching(own_bus) as link:
        await trusted(link)
        with server.stalled():
            await until(lambda: link.trusted_since is None)
            resumed = time.monotonic()
        assert await trusted(link) >= resumed


async def test_while_a_link_stalls_what_is_heard_is_known_to_be_late(
    server: NatsProcess, own_bus: Bus
) -> None:
    link = LinkWatch(own_bus, 60)  # one message, which has a minute to come back
    assert link.delay_s == 0
    with server.stalled():
        running = asyncio.create_task(link.run())
        await until(lambda: link.delay_s >= 0.3)
        assert link.trusted_since is None
    await trusted(link)
    assert 0.3 <= link.delay_s < 30
    running.cancel()
    async with watching(own_bus) as link:
        await until(lambda: 0 < link.delay_s < 0.1)


async def test_a_new_connection_is_trusted_anew(server: NatsProcess, own_bus: Bus) -> None:
    async with watching(own_bus) as link:
        await trusted(link)
        server.kill()
        await asyncio.wait_for(own_bus.wait_lost(), _WAIT_S)
        back = time.monotonic()
        await asyncio.to_thread(server.start)
        await trusted(link, since=back)


async def test_who_is_told_not_to_trust_it_begins_anew(own_bus: Bus) -> None:
    async with watching(own_bus) as link:
        await trusted(link)
        link.distrust()
        told = time.monotonic()
        assert await trusted(link) >= told


async def test_on_a_new_connection_others_may_have_taken_us_for_gone(own_bus: Bus) -> None:
    async with watching(own_bus) as link:
        await trusted(link)
        assert link.away_at is None
        link.note_new_connection()
        assert link.trusted_since is None and link.away_at is not None
        assert link.replaced_at is None, "clients are more patient"


async def test_what_lay_in_a_buffer_is_known_to_be_old_until_all_of_it_has_come(
    server: NatsProcess, own_bus: Bus
) -> None:
    async with watching(own_bus) as link:
        await trusted(link)
        assert (link.lately_away, link.away_at, link.replaced_at) == (False, None, None)
        with server.stalled():
            await asyncio.sleep(1.5)
            assert link.out_of_touch
        back = time.monotonic()
        await until(lambda: link.away_at is not None)
        assert link.out_of_touch, "what came before that may be old"
        await until(lambda: not link.out_of_touch)
        assert link.lately_away, "others may still be asked again"
        await until(lambda: not link.lately_away)
        assert link.away_at is not None and link.away_at >= back
        assert link.replaced_at is None, "nobody gives up so soon"


async def test_who_was_away_for_long_knows_that_others_took_its_place(
    server: NatsProcess, own_bus: Bus
) -> None:
    async with watching(own_bus) as link:
        await trusted(link)
        with server.stalled():
            await asyncio.sleep(2.5)
        await until(lambda: link.replaced_at is not None)
        assert link.replaced_at == link.away_at


# What that means for workers.


@contextlib.asynccontextmanager
async def beating(worker: SimulatedWorker) -> AsyncIterator[None]:
    async def beat() -> None:
        while True:
            await worker.say("heartbeat")
            await asyncio.sleep(0.1)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("how", ["the link stalls", "the process stops", "the server restarts"])
async def test_a_worker_that_could_not_be_heard_is_not_given_up(
    server: NatsProcess, own_bus: Bus, how: str
) -> None:
    nats = as_tester(server.url)
    async with running_controller(nats, own_bus, failover=_FAILOVER) as cluster:
        worker = await cluster.worker("w1")
        inbox = await cluster.begin(request_id="r")
        await worker.emit(await worker.next_dispatch(), CONTROLLER, 0, 1)
        link = cluster.controller._link
        async with beating(worker):
            await until(lambda: for_long(link.trusted_since))
        disturbed_at = time.monotonic()
        if how == "the link stalls":
            with server.stalled():
                await asyncio.sleep(1.5 * _SILENCE_S)
        elif how == "the process stops":
            time.sleep(1.2 * _SILENCE_S)  # noqa: ASYNC251 (everything stands still)
        else:
            server.kill()
            await asyncio.wait_for(own_bus.wait_lost(), _WAIT_S)
            await asyncio.sleep(_SILENCE_S)
            await asyncio.to_thread(server.start)
            await asyncio.wait_for(own_bus.wait_connected(), _WAIT_S)
        await trusted(link, since=disturbed_at)
        await asyncio.sleep(_A_TICK_S)  # the worker may need a moment too
        async with beating(worker):
            await until(lambda: for_long(link.trusted_since))
            assert cluster.controller.report().workers == 1
            assert inbox.rest() == []
        if how == "the link stalls":
            assert (await inbox.end()).error.code == "worker_lost", "now it is silent"


def for_long(since: float | None) -> bool:
    """Whether it is so for as long as silence may last."""
    return since is not None and time.monotonic() - since > _SILENCE_S
