"""Who leads: at most one at any time, whatever happens to it, its connection and the server."""

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from shared import subjects
from shared.bus.lease_store import Kept
from shared.clock import awake_or_asleep
from tests.controller.candidates import WAIT_S, Candidate, Candidates, candidates
from tests.nats_proxy import Disturbance, NatsProxy
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio


async def test_one_of_three_holds_it_and_keeps_it(server: NatsProcess) -> None:
    async with candidates() as group:
        for name in ("c-1", "c-2", "c-3"):
            await group.add(server.url, name)
        first = await group.leader()
        term = first.lease.term
        for _ in range(4):
            await first.renewed()
        assert group.leaders == [first]
        assert (first.lease.term, first.lease.problem) == (term, None)
        assert first.lease._sequence > term > 0


async def test_who_ends_without_a_word_is_followed_when_its_time_is_over_and_not_before(
    server: NatsProcess,
) -> None:
    async with candidates() as group:
        first = await group.add(server.url, "c-1")
        await first.wait()
        second = await group.add(server.url, "c-2")
        await first.renewed()
        await first.die()
        assert not first.lease.holds
        await second.wait()
        late_s = awake_or_asleep() - group.ends_at(first)
        assert late_s >= 0
        assert second.lease.term > first.lease._sequence


async def test_what_is_given_up_is_taken_over_at_once(server: NatsProcess) -> None:
    async with candidates(3) as group:
        first, second = await _one_that_leads_and_one_that_waits(group, server)
        await asyncio.wait_for(first.lease.give_up(), 10)
        assert not first.lease.holds
        await second.wait()
        assert awake_or_asleep() < group.ends_at(first)
        assert second.lease.term > first.lease.term
        await asyncio.wait_for(first.running, 10)  # it does not try again


async def test_what_is_given_up_can_be_heard_before_jetstream_has_kept_it(
    server: NatsProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with candidates(3) as group:
        first, second = await _one_that_leads_and_one_that_waits(group, server)
        look = second.lease._store.look
        before = [await look(timeout_s=10)] * 3

        async def late(*, timeout_s: float) -> Kept:
            return before.pop() if before else await look(timeout_s=timeout_s)

        monkeypatch.setattr(second.lease._store, "look", late)
        await asyncio.wait_for(first.lease.give_up(), 10)
        await second.wait()
        assert awake_or_asleep() < group.ends_at(first) and not before


async def _one_that_leads_and_one_that_waits(
    group: Candidates, server: NatsProcess
) -> tuple[Candidate, Candidate]:
    """The second does not come again by itself."""
    first = await group.add(server.url, "c-1")
    await first.wait()
    second = await group.add(server.url, "c-2")
    second.lease._interval_s = 2 * WAIT_S
    await first.renewed()
    await first.renewed()
    return first, second


async def test_giving_up_what_is_not_held_leaves_the_holder_alone(server: NatsProcess) -> None:
    async with candidates() as group:
        first = await group.add(server.url, "c-1")
        await first.wait()
        second = await group.add(server.url, "c-2")
        await second.lease.give_up()
        await first.renewed()
        await first.renewed()
        assert group.leaders == [first]


async def test_a_word_that_it_was_given_up_is_only_a_hint(server: NatsProcess) -> None:
    async with candidates() as group:
        first = await group.add(server.url, "c-1")
        await first.wait()
        second = await group.add(server.url, "c-2")
        for _ in range(20):
            refused = await second.bus.request(
                "$KV.mlx_leader.controller", b"", timeout_s=10,
                headers={"Nats-Expected-Last-Sequence": "1"},
            )  # fmt: skip
            assert b"wrong last sequence" in refused.payload
        await first.renewed()
        assert group.leaders == [first]


async def test_who_is_cut_off_stops_believing_before_another_holds_it(server: NatsProcess) -> None:
    async with NatsProxy(server.url) as line, candidates() as group:
        first = await group.add(line.url, "c-1")
        await first.wait()
        second = await group.add(server.url, "c-2")
        await first.renewed()
        line.stall()
        await first.wait(held=False)
        assert awake_or_asleep() < group.ends_at(first) and not second.lease.holds
        await second.wait()
        line.resume()
        await second.renewed()
        await second.renewed()
        assert group.leaders == [second]


async def test_a_process_that_stood_still_does_not_believe_for_a_moment(
    server: NatsProcess,
) -> None:
    asleep_s = 0.0
    async with candidates() as group:
        first = await group.add(server.url, "c-1", clock=lambda: awake_or_asleep() + asleep_s)
        await first.wait()
        term = first.lease.term
        asleep_s = 1.9
        assert not first.lease.holds  # nothing else has run meanwhile
        await first.wait()
        assert first.lease.term > term


async def test_a_renewal_whose_answer_is_lost_counts_when_it_is_found(tmp_path: Path) -> None:
    """A line that loses single messages has to see them: nothing is encrypted there."""
    with NatsProcess(tmp_path, secured=False) as server:
        await _lose_a_renewal(server.url)


async def _lose_a_renewal(url: str) -> None:
    async with NatsProxy(url) as line, candidates(4) as group:
        first = await group.add(line.url, "c-1")
        await first.wait()
        term = first.lease.term
        line.disturbance = Disturbance(drop=1, prefix=subjects.inbox_prefix("controller", "c-1"))
        await first.until(lambda: line.counters.dropped > 0)
        line.disturbance = Disturbance()
        await first.renewed()
        assert first.lease.holds and first.lease.term == term
        assert first.lease._sequence >= term + 2  # the lost one is among them


async def test_it_is_kept_over_a_restart_of_the_server(server: NatsProcess) -> None:
    async with candidates(3) as group:
        first = await group.add(server.url, "c-1")
        await first.wait()
        await group.add(server.url, "c-2")
        term = first.lease.term
        await first.renewed()
        server.kill()
        await asyncio.to_thread(server.start)
        await first.renewed()
        await first.renewed()
        assert group.leaders == [first] and first.lease.term == term


async def test_after_a_server_was_away_for_longer_the_term_has_grown(server: NatsProcess) -> None:
    async with candidates(1) as group:
        first = await group.add(server.url, "c-1")
        await first.wait()
        term = first.lease.term
        server.kill()
        await first.wait(held=False)
        await asyncio.to_thread(server.start)
        second = await group.add(server.url, "c-2")
        assert (await group.leader()).lease.term > term
        assert second.lease.term == 0 or second.lease.term > term


async def test_when_the_store_is_lost_nobody_leads_until_an_old_lease_must_have_ended(
    server: NatsProcess,
) -> None:
    async with candidates() as group:
        first = await group.add(server.url, "c-1")
        await first.wait()
        second = await group.add(server.url, "c-2")
        await first.renewed()
        term, last = first.lease.term, first.lease._sequence
        server.kill()
        assert server.store is not None
        shutil.rmtree(server.store)
        await asyncio.to_thread(server.start)
        started_at = awake_or_asleep()
        await first.until(lambda: max(first.lease.term, second.lease.term) > term)
        assert awake_or_asleep() - started_at >= group.ttl_s - 0.1
        assert (await group.leader()).lease.term > last


async def test_without_jetstream_nobody_leads_and_the_reason_is_told_once(
    server: NatsProcess, caplog: pytest.LogCaptureFixture
) -> None:
    server.kill()
    store, server.store = server.store, None
    await asyncio.to_thread(server.start)
    caplog.set_level(logging.INFO, "controller.lease")
    async with candidates(1) as group:
        first = await group.add(server.url, "c-1")
        await first.until(lambda: first.lease.problem is not None)
        await asyncio.sleep(group.ttl_s)  # several attempts
        assert first.lease.problem == "the NATS server has no JetStream"
        assert group.leaders == []
        assert [record.message for record in caplog.records] == [
            "nobody leads: the NATS server has no JetStream"
        ]
        server.kill()
        server.store = store
        await asyncio.to_thread(server.start)
        await first.wait()
        assert first.lease.problem is None
