"""The supervised connection, on a real server that nobody stops."""

import asyncio
import contextlib
import gc
import logging

import pytest

from shared.bus import Bus, IncomingMessage
from shared.bus.service import Endpoint, MicroService
from shared.errors import BusError, BusTimeout, NoResponders, PayloadTooLarge
from shared.settings.nats import NatsSettings

pytestmark = pytest.mark.anyio


async def collect(bus: Bus, subject: str, queue: str = "") -> asyncio.Queue[IncomingMessage]:
    messages: asyncio.Queue[IncomingMessage] = asyncio.Queue()
    await bus.subscribe(subject, messages.put, queue=queue)
    return messages


async def next_of(messages: asyncio.Queue[IncomingMessage]) -> IncomingMessage:
    return await asyncio.wait_for(messages.get(), 10)


async def test_a_message_arrives_with_its_subject_reply_and_bytes(bus: Bus) -> None:
    messages = await collect(bus, "t.*")
    await bus.publish("t.one", b"hello", reply="_INBOX.x")
    await bus.publish("t.two", b"")
    assert await next_of(messages) == IncomingMessage("t.one", "_INBOX.x", b"hello")
    assert await next_of(messages) == IncomingMessage("t.two", "", b"")


@pytest.mark.parametrize("reply", ["t.orders", "_INBOX", "_INBOX.", "_INBOX.a..b", "$JS.API.INFO"])
async def test_what_names_no_inbox_asks_for_no_answer(bus: Bus, reply: str) -> None:
    """Who answers there would give an order in its own name."""
    messages = await collect(bus, "t.one")
    await bus.publish("t.one", b"hello", reply=reply)
    assert await next_of(messages) == IncomingMessage("t.one", "", b"hello")


async def test_a_service_answers_in_inboxes_only(bus: Bus) -> None:
    endpoint = Endpoint("health", "t.health", "q", lambda: b"well")
    await bus.serve(MicroService("t", "0.1.0", "for a test", {}, (endpoint,)))
    orders = await collect(bus, "t.orders")
    await bus.publish("t.health", b"", reply="t.orders")
    assert (await bus.request("t.health", b"", timeout_s=10)).payload == b"well"
    await bus.flush()
    assert orders.empty()


async def test_a_request_that_nobody_hears_fails_at_once(bus: Bus) -> None:
    with pytest.raises(NoResponders, match=r"no responders on t\.nobody"):
        await bus.request("t.nobody", b"", timeout_s=60)


async def test_a_request_that_is_heard_but_not_answered_times_out(bus: Bus) -> None:
    messages = await collect(bus, "t.silent")
    with pytest.raises(BusTimeout, match=r"no answer on t\.silent within 0\.05 s"):
        await bus.request("t.silent", b"", timeout_s=0.05)
    assert (await next_of(messages)).reply


async def test_who_is_cancelled_just_as_the_answer_comes_is_cancelled(
    bus: Bus, nats_settings: NatsSettings
) -> None:
    asking: list[asyncio.Task[IncomingMessage]] = []
    in_time: list[bool] = []

    async def leave(_: IncomingMessage) -> None:
        in_time.append(asking[-1].cancel())

    async with contextlib.AsyncExitStack() as stack:
        other = await Bus.connect(nats_settings, name="other", wait_s=30)
        stack.push_async_callback(other.close)

        async def answer(message: IncomingMessage) -> None:
            await other.publish("t.leave", b"")
            await other.publish(message.reply, b"")  # in the same packet

        await bus.subscribe("t.leave", leave)
        await other.subscribe("t.answer", answer)
        await other.flush()
        for _ in range(20):
            asking.append(asyncio.create_task(bus.request("t.answer", b"", timeout_s=10)))
            await asyncio.wait(asking)
    assert any(in_time)
    assert [task.cancelled() for task in asking] == in_time


async def test_a_publish_that_nobody_hears_is_told_to_its_inbox(bus: Bus) -> None:
    inbox = bus.new_inbox()
    messages = await collect(bus, inbox)
    await bus.publish("t.nobody", b"", reply=inbox)
    assert (await next_of(messages)).no_responders


async def test_more_than_the_server_takes_is_refused_here_and_the_connection_stays(
    bus: Bus,
) -> None:
    payload = b"x" * (bus.max_payload + 1)
    with pytest.raises(PayloadTooLarge) as caught:
        await bus.publish("t.big", payload)
    assert str(len(payload)) in caught.value.message
    assert str(bus.max_payload) in caught.value.message
    assert (caught.value.code, caught.value.retryable) == ("payload_too_large", False)
    with pytest.raises(PayloadTooLarge):
        await bus.request("t.big", payload, timeout_s=1)
    messages = await collect(bus, "t.big")
    await bus.publish("t.big", payload[1:])
    assert len((await next_of(messages)).payload) == bus.max_payload


async def test_asking_many_collects_every_answer(bus: Bus, nats_settings: NatsSettings) -> None:
    other = await Bus.connect(nats_settings, name="other", wait_s=30)
    for number, one in enumerate((bus, other)):

        async def answer(message: IncomingMessage, one: Bus = one, number: int = number) -> None:
            await one.publish(message.reply, str(number).encode())

        await one.subscribe("t.many", answer)
    await other.flush()
    answers = await bus.request_many("t.many", b"", wait_s=1)
    assert sorted(message.payload for message in answers) == [b"0", b"1"]
    await other.close()


async def test_asking_many_where_nobody_is_does_not_wait(bus: Bus) -> None:
    async with asyncio.timeout(10):
        assert await bus.request_many("t.nobody", b"", wait_s=60) == []


async def test_a_queue_group_shares_its_messages(bus: Bus) -> None:
    messages: asyncio.Queue[IncomingMessage] = asyncio.Queue()
    for _ in range(2):
        await bus.subscribe("t.shared", messages.put, queue="group")
    for number in range(20):
        await bus.publish("t.shared", str(number).encode())
    await bus.request_many("t.nobody", b"", wait_s=10)  # all that came before has arrived
    got = sorted(int(messages.get_nowait().payload) for _ in range(messages.qsize()))
    assert got == list(range(20))


async def test_after_unsubscribing_nothing_arrives(bus: Bus) -> None:
    messages: asyncio.Queue[IncomingMessage] = asyncio.Queue()
    subscription = await bus.subscribe("t.left", messages.put)
    await subscription.unsubscribe()
    with pytest.raises(NoResponders):
        await bus.request("t.left", b"", timeout_s=10)
    assert messages.empty()


async def test_a_handler_that_fails_is_logged_and_gets_the_next_message(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    messages: asyncio.Queue[IncomingMessage] = asyncio.Queue()

    async def fail_on_bad(message: IncomingMessage) -> None:
        if message.payload == b"bad":
            raise ValueError("so it is")
        await messages.put(message)

    await bus.subscribe("t.fails", fail_on_bad)
    with caplog.at_level(logging.ERROR, "shared.bus"):
        await bus.publish("t.fails", b"bad")
        await bus.publish("t.fails", b"good")
        assert (await next_of(messages)).payload == b"good"
    assert "the handler of t.fails failed" in caplog.text
    assert "so it is" in caplog.text


async def test_inboxes_lie_under_the_prefix(nats_settings: NatsSettings) -> None:
    own = await Bus.connect(nats_settings, name="t", inbox_prefix="_INBOX.ada", wait_s=30)
    assert own.new_inbox().startswith("_INBOX.ada.")
    assert own.new_inbox() != own.new_inbox()
    await own.close()


async def test_a_subject_with_a_space_is_an_error_of_the_bus(bus: Bus) -> None:
    with pytest.raises(BusError, match="publish to a b"):
        await bus.publish("a b", b"")


async def test_a_closed_bus_says_so_and_may_be_closed_again(nats_settings: NatsSettings) -> None:
    closed = await Bus.connect(nats_settings, name="t", wait_s=30)
    await closed.close()
    await closed.close()
    assert not closed.connected
    messages: asyncio.Queue[IncomingMessage] = asyncio.Queue()
    with pytest.raises(BusError):
        await closed.publish("t.x", b"")
    with pytest.raises(BusError):
        await closed.request("t.x", b"", timeout_s=1)
    with pytest.raises(BusError):
        await closed.subscribe("t.x", messages.put)
    with pytest.raises(BusError):
        await closed.flush()


async def test_closing_sends_what_is_buffered(bus: Bus, nats_settings: NatsSettings) -> None:
    messages = await collect(bus, "t.last")
    await bus.flush()
    leaving = await Bus.connect(nats_settings, name="t", wait_s=30)
    for number in range(100):
        await leaving.publish("t.last", str(number).encode())
    await leaving.close()
    assert [int((await next_of(messages)).payload) for _ in range(100)] == list(range(100))


async def test_a_subscription_that_ended_leaves_no_garbage(bus: Bus) -> None:
    """A client makes one for each answer: what only the garbage collector can free costs it more
    than all the rest of a message."""

    async def one() -> None:
        came = asyncio.Event()

        async def on_message(message: IncomingMessage) -> None:
            came.set()

        subscription = await bus.subscribe(bus.new_inbox(), on_message)
        await bus.publish(subscription._subject, b"")
        await came.wait()
        await subscription.unsubscribe()

    await one()
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            await one()
        assert gc.collect() < 10
    finally:
        gc.enable()


async def test_a_subscription_that_ended_is_not_attached_to_a_new_client(bus: Bus) -> None:
    """A client that was lost may be replaced at this very moment."""
    messages: asyncio.Queue[IncomingMessage] = asyncio.Queue()
    ended = await bus.subscribe("t.ended", messages.put)
    await ended.unsubscribe()
    await ended.attach(bus._client)
    assert bus._client._receivers == {}
    await bus.publish("t.ended", b"")
    await bus.flush()
    assert messages.empty()


async def test_a_handler_that_ends_its_subscription_goes_on(bus: Bus) -> None:
    """Also when somebody else ends it once more."""
    began, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def on_message(message: IncomingMessage) -> None:
        await subscription.unsubscribe()
        began.set()
        await may_end.wait()
        ended.set()

    subscription = await bus.subscribe("t.self", on_message)
    await bus.publish("t.self", b"")
    await asyncio.wait_for(began.wait(), 10)
    await subscription.unsubscribe()
    may_end.set()
    await asyncio.wait_for(ended.wait(), 10)


async def test_from_the_name_of_one_inbox_nobody_can_guess_another(bus: Bus) -> None:
    names = [bus.new_inbox().rpartition(".")[2] for _ in range(100)]
    assert {len(name) for name in names} == {22}
    assert len({name[:8] for name in names}) == len(names)
    replies: list[str] = []

    async def answer(message: IncomingMessage) -> None:
        replies.append(message.reply.rpartition(".")[2])
        await bus.publish(message.reply, b"")

    await bus.subscribe("asked", answer)
    for _ in range(10):
        await bus.request("asked", b"", timeout_s=30)
    assert len({reply[:8] for reply in replies}) == len(replies) == 10
