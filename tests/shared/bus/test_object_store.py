"""Values of any size in a real JetStream, within the bounds of their bucket."""

import asyncio
import random

import pytest

from shared.bus import Bus, ObjectStore
from shared.errors import BusError, JetStreamFull
from tests.access.roles import as_tester
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio

_CHUNK = 128 * 1024


def store(bus: Bus, max_bytes: int = 50_000_000, max_age_s: float = 3600) -> ObjectStore:
    return ObjectStore(bus, "test", max_bytes=max_bytes, max_age_s=max_age_s)


async def test_values_of_all_sizes_are_kept(own_bus: Bus, seed: int) -> None:
    kept = store(own_bus)
    drawn = random.Random(seed)
    sizes = [0, 1, _CHUNK - 1, _CHUNK, _CHUNK + 1, 3_000_000]
    values = {f"local/{size}": drawn.randbytes(size) for size in sizes}
    await asyncio.gather(*(kept.put(name, value) for name, value in values.items()))
    for name, value in values.items():
        assert await kept.get(name) == value
    assert await kept.get("local/other") is None


async def test_what_is_put_again_is_replaced_and_what_is_deleted_is_gone(own_bus: Bus) -> None:
    kept = store(own_bus)
    await kept.put("a", b"one" * _CHUNK)
    await kept.put("a", b"two")
    assert await kept.get("a") == b"two"
    await kept.delete("a")
    await kept.delete("a")
    assert await kept.get("a") is None


async def test_nothing_is_kept_beyond_the_room(own_bus: Bus) -> None:
    kept = store(own_bus, max_bytes=1_000_000)
    await kept.put("first", bytes(700_000))
    with pytest.raises(JetStreamFull):
        await kept.put("second", bytes(700_000))
    assert await kept.get("second") is None
    assert await kept.get("first") == bytes(700_000)
    await kept.delete("first")
    await kept.put("second", bytes(700_000))
    assert await kept.get("second") == bytes(700_000)


async def test_a_bucket_gets_the_bounds_of_whom_opened_it_last(own_bus: Bus) -> None:
    await store(own_bus, max_bytes=100_000).put("a", b"one")
    await store(own_bus, max_bytes=1_000_000).put("b", bytes(500_000))
    assert await store(own_bus).get("a") == b"one"
    await store(own_bus, max_age_s=60).put("c", b"three")
    await store(own_bus, max_age_s=7_000_000).put("d", b"four")
    assert await store(own_bus).get("c") == b"three"


async def test_what_is_too_old_is_forgotten(own_bus: Bus) -> None:
    kept = store(own_bus, max_age_s=1)
    await kept.put("a", bytes(3 * _CHUNK))
    deadline = asyncio.get_running_loop().time() + 20
    while await kept.get("a") is not None:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)


async def test_it_outlives_its_server(own_bus: Bus, server: NatsProcess) -> None:
    await store(own_bus).put("a", b"one" * _CHUNK)
    server.kill()
    with pytest.raises(BusError, match="JetStream could not"):
        await store(own_bus).get("a")
    await asyncio.to_thread(server.start)
    await own_bus.wait_connected()
    assert await store(own_bus).get("a") == b"one" * _CHUNK


async def test_without_jetstream_it_says_so(server: NatsProcess) -> None:
    server.kill()
    server.store = None
    await asyncio.to_thread(server.start)
    bus = await Bus.connect(as_tester(server.url), name="test", wait_s=10)
    kept = store(bus)
    for work in (kept.get("a"), kept.put("a", b""), kept.delete("a")):
        with pytest.raises(BusError, match="JetStream could not"):
            await work
    await bus.close()
