"""What one request may read from the store, and what one client may put there. On a real server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.gateway.metrics import GatewayMetrics
from controller.gateway.responses import stored
from controller.gateway.responses.client_shares import ClientShares
from controller.gateway.responses.items import ReferenceItem
from controller.gateway.responses.stored import ResponseStore, StoredTurn
from shared.bus import Bus, ObjectStore, ReceiveStatistics
from shared.errors import RequestError
from shared.ids import ClientName
from shared.subjects import RESPONSES_BUCKET

pytestmark = pytest.mark.anyio

_ADA, _BOB = ClientName("ada"), ClientName("bob")
_MAX_BYTES = 20_000


@pytest.fixture
async def objects(own_bus: Bus) -> AsyncIterator[ObjectStore]:
    yield ObjectStore(own_bus, RESPONSES_BUCKET, max_bytes=10_000_000, max_age_s=3600)


def _id(number: int) -> str:
    return f"resp_{number:024x}"


def _message(number: int, size: int) -> dict[str, Any]:
    content = [{"type": "input_text", "text": "x" * size}]
    return {
        "type": "message", "role": "user", "content": content, "id": f"msg_{number:024x}_i0",
    }  # fmt: skip


async def _put(
    store: ResponseStore, number: int, size: int = 10, client: ClientName = _ADA, chained: int = 0
) -> bool:
    before = [_id(each) for each in range(number - chained, number)]
    turn = StoredTurn(before, [_message(number, size)], [])
    return await store.put(client, {"id": _id(number), "output": []}, turn)


def _references(numbers: range) -> list[Any]:
    return [ReferenceItem(type="item_reference", id=f"msg_{number:024x}_i0") for number in numbers]


async def test_one_request_reads_a_bounded_number_of_responses(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_MAX_TURNS", 10)
    store = ResponseStore(objects, _MAX_BYTES, GatewayMetrics(ReceiveStatistics()))
    for number in range(12):
        assert await _put(store, number, chained=number)
    assert len((await store.conversation(_ADA, _id(9), [])).previous_items) == 10
    assert len((await store.conversation(_ADA, None, _references(range(10)))).new_items) == 10
    for previous, references in ((_id(10), range(0)), (None, range(11)), (_id(8), range(9, 11))):
        with pytest.raises(RequestError) as caught:
            await store.conversation(_ADA, previous, _references(references))
        assert caught.value.code == "payload_too_large" and caught.value.param
    with pytest.raises(RequestError):
        await store.input_items(_ADA, _id(11))


async def test_one_request_reads_a_bounded_number_of_bytes(objects: ObjectStore) -> None:
    store = ResponseStore(objects, _MAX_BYTES, GatewayMetrics(ReceiveStatistics()))
    for number in range(4):
        assert await _put(store, number, 9000)
    assert len((await store.conversation(_ADA, None, _references(range(2)))).new_items) == 2
    with pytest.raises(RequestError) as caught:
        await store.conversation(_ADA, None, _references(range(4)))
    assert (caught.value.code, caught.value.param) == ("payload_too_large", "input.2.id")
    with pytest.raises(RequestError):
        await store.conversation(_ADA, _id(0), _references(range(4)))
    twice = [*_references(range(2)), *_references(range(2))]
    assert len((await store.conversation(_ADA, None, twice)).new_items) == 4, "each is read once"


async def test_a_client_that_stores_much_loses_its_own_oldest_responses_only(
    objects: ObjectStore,
) -> None:
    shares = ClientShares(50_000, 3600)
    store = ResponseStore(objects, _MAX_BYTES, GatewayMetrics(ReceiveStatistics()), shares)
    assert await _put(store, 100, client=_BOB)
    for number in range(10):
        assert await _put(store, number, 10_000)
    assert await store.find(_BOB, _id(100)) and await store.find(_ADA, _id(9))
    kept = []
    for number in range(10):
        try:
            await store.find(_ADA, _id(number))
        except RequestError as error:
            assert error.code == "not_found"
        else:
            kept.append(number)
    assert kept and kept == list(range(kept[0], 10)) and len(kept) < 6
    assert not await _put(store, 11, 60_000), "more than its share"
    assert await store.find(_ADA, _id(9))
