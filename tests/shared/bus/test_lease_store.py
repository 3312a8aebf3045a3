"""One key in a real JetStream: written in order, gone by itself, and what cannot keep it."""

import asyncio
import json
import time
from typing import Any

import pytest

from shared import subjects
from shared.bus import Bus, IncomingMessage, LeaseStore
from shared.errors import BusError, NoJetStream, WriteConflict
from tests.access.roles import as_tester
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio

_WAIT_S = 10.0
INFO = "$JS.API.STREAM.INFO.KV_test"


@pytest.fixture
def store(own_bus: Bus) -> LeaseStore:
    return LeaseStore(own_bus, "test", "key")


async def sequence_of(store: LeaseStore) -> int:
    return (await store.read(timeout_s=_WAIT_S)).sequence


async def write(store: LeaseStore, value: bytes, after: int, ttl_s: int = 60) -> int:
    return await store.write(value, after=after, ttl_s=ttl_s, timeout_s=_WAIT_S)


async def test_the_bucket_is_made_when_it_is_missing_and_begins_at_the_time(
    store: LeaseStore,
) -> None:
    before_ms = time.time() * 1000
    kept = await store.read(timeout_s=_WAIT_S)
    assert before_ms - 2 <= kept.sequence <= time.time() * 1000
    assert kept.value == b""
    assert (await store.read(timeout_s=_WAIT_S)).sequence == kept.sequence


async def test_many_at_once_make_one_bucket(own_bus: Bus) -> None:
    stores = [LeaseStore(own_bus, "test", "key") for _ in range(10)]
    assert len(set(await asyncio.gather(*map(sequence_of, stores)))) == 1


async def test_what_is_written_is_kept_and_only_the_next_may_be_written(store: LeaseStore) -> None:
    empty = await sequence_of(store)
    first = await write(store, b"ada", empty)
    kept = await store.read(timeout_s=_WAIT_S)
    assert (kept.sequence, kept.value) == (first, b"ada")
    with pytest.raises(WriteConflict, match=f"wrong last sequence: {first}"):
        await write(store, b"bob", empty)
    second = await write(store, b"ada", first)
    assert second == first + 1
    with pytest.raises(WriteConflict):
        await write(store, b"bob", first)
    assert await write(store, b"bob", second) == second + 1
    kept = await store.read(timeout_s=_WAIT_S)
    assert (kept.sequence, kept.value) == (second + 1, b"bob")


async def test_of_many_at_once_one_writes(store: LeaseStore) -> None:
    empty = await sequence_of(store)
    writes = (write(store, b"%d" % number, empty) for number in range(20))
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert sum(isinstance(result, int) for result in results) == 1
    assert sum(isinstance(result, WriteConflict) for result in results) == 19


async def test_it_goes_by_itself_no_earlier_than_asked_and_the_sequence_stays(
    store: LeaseStore,
) -> None:
    first = await write(store, b"ada", await sequence_of(store), ttl_s=1)
    sent_at = time.monotonic()
    last = await write(store, b"ada", first, ttl_s=1)
    kept = await store.read(timeout_s=_WAIT_S)
    while kept.value and time.monotonic() < sent_at + _WAIT_S:
        await asyncio.sleep(0.01)
        kept = await store.read(timeout_s=_WAIT_S)
    assert time.monotonic() - sent_at >= 1 and not kept.value
    assert kept.sequence == last


async def test_who_hears_it_is_told_what_somebody_may_have_written(store: LeaseStore) -> None:
    """Also what JetStream refused: it is a hint."""
    told: list[bytes] = []

    async def hear(value: bytes) -> None:
        told.append(value)

    hearing = await store.on_written(hear)
    last = await write(store, b"ada", await sequence_of(store))
    await write(store, b"bob", last)
    with pytest.raises(WriteConflict):
        await write(store, b"carol", last)
    await store._bus.flush()
    assert told == [b"ada", b"bob", b"carol"]
    await hearing.unsubscribe()
    await write(store, b"dave", last + 1)
    await store._bus.flush()
    assert len(told) == 3


async def test_it_works_on_over_a_restart_of_the_server(
    store: LeaseStore, own_bus: Bus, server: NatsProcess
) -> None:
    last = await write(store, b"ada", await sequence_of(store))
    server.kill()
    await asyncio.wait_for(own_bus.wait_lost(), _WAIT_S)
    await asyncio.to_thread(server.start)
    await asyncio.wait_for(own_bus.wait_connected(), _WAIT_S)
    kept = await store.read(timeout_s=_WAIT_S)
    assert (kept.sequence, kept.value) == (last, b"ada")
    assert await write(store, b"ada", last) == last + 1


async def test_a_bucket_that_keeps_for_good_is_refused(store: LeaseStore, own_bus: Bus) -> None:
    stream = {"name": "KV_test", "subjects": ["$KV.test.>"], "max_msgs_per_subject": 1}
    payload = json.dumps(stream).encode()
    await own_bus.request(subjects.jetstream("CREATE", "test"), payload, timeout_s=_WAIT_S)
    with pytest.raises(BusError, match="messages in the bucket test do not expire"):
        await store.read(timeout_s=_WAIT_S)


async def test_a_store_that_cannot_be_written_is_told(
    store: LeaseStore, server: NatsProcess
) -> None:
    """As when the disk is full, which is `insufficient storage resources available`."""
    await LeaseStore(store._bus, "other", "key").read(timeout_s=_WAIT_S)
    assert server.store is not None
    (streams,) = server.store.glob("jetstream/*/streams")
    (streams / "KV_test").write_text("in the way")
    with pytest.raises(BusError, match="JetStream: error creating store for stream"):
        await store.read(timeout_s=_WAIT_S)


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense", b"[]", b"{}", b'{"error": "x"}', b'{"config": {"allow_msg_ttl": true}}'],
)
async def test_what_is_no_answer_of_jetstream_is_an_error(server: NatsProcess, answer: Any) -> None:
    server.kill()
    server.store = None
    await asyncio.to_thread(server.start)
    bus = await Bus.connect(as_tester(server.url), name="t", wait_s=_WAIT_S)

    async def reply(message: IncomingMessage) -> None:
        await bus.publish(message.reply, answer)

    store = LeaseStore(bus, "test", "key")
    try:
        with pytest.raises(NoJetStream, match="the NATS server has no JetStream"):
            await store.read(timeout_s=_WAIT_S)
        with pytest.raises(BusError, match="no responders"):
            await write(store, b"ada", 0)
        for subject in (INFO, subjects.key_value("test", "key")):
            await bus.subscribe(subject, reply)
        with pytest.raises(BusError, match="could not be read"):
            await store.read(timeout_s=_WAIT_S)
        with pytest.raises(BusError, match="could not be read"):
            await write(store, b"ada", 0)
    finally:
        await bus.close()
