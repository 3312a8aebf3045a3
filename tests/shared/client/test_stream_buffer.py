"""What came in and was not read: in order, bounded, and waited for."""

import asyncio

import pytest

from shared.client.inboxes import StreamDelivery
from shared.client.stream_buffer import StreamBuffer
from shared.errors import StreamFailed
from shared.ids import RequestId
from shared.messages.stream import StatusMessage

pytestmark = pytest.mark.anyio

_SOON_S = 0.01
_LONG_S = 60.0


def message(number: int, size: int = 0) -> StreamDelivery:
    return StreamDelivery([StatusMessage(RequestId("x"), number, None, "queued")], size)


def number(read: StreamDelivery | None) -> int | None:
    if read is None:
        return None
    assert isinstance(read.content, list)
    return read.content[0].attempt


async def test_messages_are_read_in_the_order_in_which_they_came() -> None:
    mailbox = StreamBuffer()
    for count in range(20):
        await mailbox.put(message(count))
    assert [number(await mailbox.get(_SOON_S)) for _ in range(21)] == [*range(20), None]


async def test_who_waits_gets_the_next_message_when_it_comes() -> None:
    mailbox = StreamBuffer()
    for count in range(3):
        waiting = asyncio.create_task(mailbox.get(_LONG_S))
        await asyncio.sleep(0)
        assert not waiting.done()
        await mailbox.put(message(count))
        assert number(await asyncio.wait_for(waiting, 10)) == count


async def test_who_is_cancelled_just_when_a_message_comes_is_cancelled_and_the_message_stays() -> (
    None
):
    mailbox = StreamBuffer()
    waiting = asyncio.create_task(mailbox.get(_LONG_S))
    for _ in range(3):
        await asyncio.sleep(0)
    await mailbox.put(message(1))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert number(await mailbox.get(_SOON_S)) == 1


async def test_as_much_as_the_limit_may_stay_unread() -> None:
    mailbox = StreamBuffer(max_unread_bytes=10_000)
    for count in range(8):
        await mailbox.put(message(count, size=1000))
    assert [number(await mailbox.get(_SOON_S)) for _ in range(8)] == list(range(8))


async def test_too_much_unread_ends_it_for_good_though_more_comes() -> None:
    mailbox = StreamBuffer(max_unread_bytes=10_000)
    for count in range(12):
        await mailbox.put(message(count, size=1000))
    for _ in range(2):
        with pytest.raises(StreamFailed) as caught:
            await mailbox.get(_SOON_S)
        assert (caught.value.code, caught.value.retryable) == ("slow_consumer", True)


async def test_many_small_messages_are_too_much_as_well() -> None:
    mailbox = StreamBuffer(max_unread_bytes=10_000)
    for count in range(100):
        await mailbox.put(message(count))
    with pytest.raises(StreamFailed):
        await mailbox.get(_SOON_S)


async def test_what_was_read_makes_room() -> None:
    mailbox = StreamBuffer(max_unread_bytes=10_000)
    for count in range(100):
        await mailbox.put(message(count, size=5000))
        assert number(await mailbox.get(_SOON_S)) == count


async def test_who_waits_hears_at_once_that_too_much_came() -> None:
    mailbox = StreamBuffer(max_unread_bytes=100)
    waiting = asyncio.create_task(mailbox.get(_LONG_S))
    await asyncio.sleep(0)
    for count in range(2):
        await mailbox.put(message(count, size=1000))
    with pytest.raises(StreamFailed):
        await asyncio.wait_for(waiting, 10)
