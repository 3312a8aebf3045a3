"""Values under keys in a real JetStream: each is written after the one before, or not at all."""

import asyncio

import pytest

from shared.bus import Bus, KeyValueEntry, KeyValueStore
from shared.errors import BusError, WriteConflict
from tests.access.roles import as_tester
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(own_bus: Bus) -> KeyValueStore:
    return KeyValueStore(own_bus, "test")


async def test_what_is_put_is_there_and_nothing_was_before(store: KeyValueStore) -> None:
    assert await store.get("a.1") is None
    first = await store.put("a.1", b"one", after=0)
    other = await store.put("b", b"", after=0)
    assert await store.get("a.1") == KeyValueEntry(b"one", first)
    assert await store.get("b") == KeyValueEntry(b"", other)
    second = await store.put("a.1", b"two", after=first)
    assert await store.get("a.1") == KeyValueEntry(b"two", second)


async def test_who_did_not_see_the_last_one_is_refused(store: KeyValueStore, own_bus: Bus) -> None:
    first = await store.put("a", b"one", after=0)
    another = KeyValueStore(own_bus, "test")
    await another.put("a", b"two", after=first)
    for after in (0, first, first + 100):
        with pytest.raises(WriteConflict):
            await store.put("a", b"three", after=after)
    entry = await store.get("a")
    assert entry is not None and entry.value == b"two"


async def test_of_many_at_once_one_wins(store: KeyValueStore) -> None:
    async def put(value: bytes) -> bool:
        try:
            await store.put("a", value, after=0)
        except WriteConflict:
            return False
        return True

    won = await asyncio.gather(*(put(str(number).encode()) for number in range(10)))
    assert won.count(True) == 1
    entry = await store.get("a")
    assert entry is not None and won[int(entry.value)]


async def test_what_is_deleted_is_gone(store: KeyValueStore) -> None:
    await store.put("a", b"one", after=0)
    await store.delete("a")
    assert await store.get("a") is None


async def test_it_outlives_a_restart_of_the_server(
    store: KeyValueStore, server: NatsProcess, own_bus: Bus
) -> None:
    revision = await store.put("a", b"one", after=0)
    server.kill()
    await own_bus.wait_lost()
    await asyncio.to_thread(server.start)
    await asyncio.wait_for(own_bus.wait_connected(), 20)
    for _ in range(50):  # JetStream begins a moment after its server
        try:
            assert await store.get("a") == KeyValueEntry(b"one", revision)
            return
        except BusError:
            continue
    raise AssertionError("it is not there")


async def test_without_jetstream_that_is_an_error(server: NatsProcess) -> None:
    server.kill()
    server.store = None
    await asyncio.to_thread(server.start)
    bus = await Bus.connect(as_tester(server.url), name="test", wait_s=10)
    store = KeyValueStore(bus, "test")
    for work in (store.get("a"), store.put("a", b"", after=0), store.delete("a")):
        with pytest.raises(BusError, match="JetStream could not"):
            await work
    await bus.close()
