"""Many streams, one inbox: each gets what is its own, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import orjson
import pytest

from shared.bus import Bus, IncomingMessage
from shared.client import Cluster, RecoveryTimes, connect
from shared.client.inboxes import SharedInbox
from shared.errors import StreamFailed, Unavailable
from shared.ids import ClientName, RequestId
from shared.messages.stream import (
    ErrorDetails,
    FailedMessage,
    StatusMessage,
    StreamMessage,
    encode_multiplexed,
)
from shared.settings.nats import NatsSettings
from tests.access.roles import as_client
from tests.shared.client.simulated_controller import MAC, SimulatedController, chunk, done

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inbox(own_bus_of_ada: Bus) -> SharedInbox:
    return SharedInbox(own_bus_of_ada, own_bus_of_ada.new_inbox())


@pytest.fixture
async def own_bus_of_ada(nats_settings: NatsSettings) -> AsyncIterator[Bus]:
    async with connect(as_client(nats_settings.servers[0], "ada"), client="ada") as connected:
        yield connected.bus


@pytest.fixture
def ada(own_bus_of_ada: Bus, inbox: SharedInbox) -> Cluster:
    return Cluster(own_bus_of_ada, ClientName("ada"), inbox)


async def _three(controller: SimulatedController) -> list[tuple[IncomingMessage, RequestId]]:
    return [await controller.next_request() for _ in range(3)]


async def test_one_message_serves_many_streams(
    bus: Bus, ada: Cluster, inbox: SharedInbox, controller: SimulatedController
) -> None:
    answers = [asyncio.create_task(ada.generate(prompt=[1])) for _ in range(3)]
    requests = await _three(controller)
    assert all(orjson.loads(request.payload)["multiplex"] for request, _ in requests)
    (reply,) = {request.reply for request, _ in requests}
    assert inbox.streams == 3
    steps: list[list[StreamMessage]] = [
        [
            chunk(request_id, 0, f"{number}", number)
            for number, (_, request_id) in enumerate(requests)
        ],
        [done(request_id) for _, request_id in requests],
    ]
    for step in steps:
        await bus.publish(reply, encode_multiplexed(step))
    texts = {answer.request_id: answer.text for answer in await asyncio.gather(*answers)}
    assert texts == {request_id: f"{number}" for number, (_, request_id) in enumerate(requests)}
    assert inbox.streams == 0


async def test_the_bad_end_of_one_is_not_that_of_the_others(
    bus: Bus, ada: Cluster, controller: SimulatedController
) -> None:
    answers = [asyncio.create_task(ada.generate(prompt=[1])) for _ in range(3)]
    requests = await _three(controller)
    bad = requests[1][1]
    messages: list[StreamMessage] = [
        FailedMessage(request_id, 0, MAC, ErrorDetails.of("queue_full", "full"))
        if request_id == bad
        else done(request_id, tokens=0)
        for _, request_id in requests
    ]
    await bus.publish(requests[0][0].reply, encode_multiplexed(messages))
    results = await asyncio.gather(*answers, return_exceptions=True)
    failed = [result for result in results if isinstance(result, StreamFailed)]
    assert [error.code for error in failed] == ["queue_full"]
    assert len(results) == 3


async def test_who_left_hears_nothing_more_and_the_others_go_on(
    bus: Bus, ada: Cluster, inbox: SharedInbox, controller: SimulatedController
) -> None:
    stream = ada.stream(prompt=[1])
    first = asyncio.ensure_future(anext(aiter(stream)))
    request, gone = await controller.next_request()
    staying = asyncio.create_task(ada.generate(prompt=[1]))
    _, other = await controller.next_request()
    await bus.publish(request.reply, encode_multiplexed([chunk(gone, 0, "a", 1)]))
    assert (await first).text == "a"
    await stream.aclose()
    assert orjson.loads((await controller.next_cancel()).payload) == {"request_id": gone}
    assert inbox.streams == 1
    late: list[StreamMessage] = [chunk(gone, 1, "b", 2), chunk(other, 0, "c", 3), done(other)]
    await bus.publish(request.reply, encode_multiplexed(late))
    assert (await staying).text == "c"


async def test_a_request_that_was_left_and_goes_on_is_cancelled_again(
    bus: Bus, own_bus_of_ada: Bus, controller: SimulatedController
) -> None:
    """Its cancel may be lost with a connection, and its worker finds a listener as long as others
    use the inbox."""
    now = [0.0]
    inbox = SharedInbox(own_bus_of_ada, own_bus_of_ada.new_inbox(), clock=lambda: now[0])
    ada = Cluster(own_bus_of_ada, ClientName("ada"), inbox)
    stream = ada.stream(prompt=[1])
    first = asyncio.ensure_future(anext(aiter(stream)))
    request, left = await controller.next_request()
    await bus.publish(request.reply, encode_multiplexed([chunk(left, 0, "a", 1)]))
    await first
    await stream.aclose()
    staying = ada.stream(prompt=[1])
    texts = aiter(staying)
    reading = asyncio.ensure_future(anext(texts))
    _, other = await controller.next_request()
    cancels = [(await controller.next_cancel()).payload]
    for index, at in enumerate((0.5, 1.5, 1.9, 2.6)):
        now[0] = at
        both: list[StreamMessage] = [chunk(left, 1 + index, "b", 2), chunk(other, index, "c", 3)]
        await bus.publish(request.reply, encode_multiplexed(both))
        assert (await reading).text == "c"
        reading = asyncio.ensure_future(anext(texts))
    cancels += [(await controller.next_cancel()).payload for _ in range(2)]
    assert [orjson.loads(payload) for payload in cancels] == [{"request_id": left}] * 3
    now[0] = 9.0
    end: list[StreamMessage] = [done(left, tokens=5), chunk(other, 4, "c", 3)]
    await bus.publish(request.reply, encode_multiplexed(end))
    assert (await reading).text == "c"
    reading = asyncio.ensure_future(anext(texts))
    late: list[StreamMessage] = [chunk(left, 5, "b", 2), chunk(other, 5, "c", 3)]
    await bus.publish(request.reply, encode_multiplexed(late))
    assert (await reading).text == "c"
    await staying.aclose()
    assert orjson.loads((await controller.next_cancel()).payload) == {"request_id": other}


async def test_what_one_asks_again_is_answered_to_it_alone(
    ada: Cluster, controller: SimulatedController
) -> None:
    answers = [asyncio.create_task(ada.generate(prompt=[1])) for _ in range(2)]
    (first, first_id), (_, second_id) = [await controller.next_request() for _ in range(2)]
    # The first token of one is lost.
    await controller.send(first, chunk(first_id, 1, "b", 2), chunk(second_id, 0, "x", 9))
    resend = await controller.next_resend()
    assert resend.reply != first.reply
    await controller.tell_resend_state(resend, "running")
    await controller.send(resend, chunk(first_id, 0, "a", 1))
    await controller.send(first, done(first_id, tokens=2), done(second_id))
    assert {answer.text for answer in await asyncio.gather(*answers)} == {"ab", "x"}


async def test_that_nobody_takes_requests_is_told_to_those_who_were_not_heard(
    ada: Cluster, inbox: SharedInbox, nats_settings: NatsSettings
) -> None:
    """And only to those: the others are at a worker."""
    impatient = replace(RecoveryTimes(), no_controller_limit_s=1.0)
    cluster = Cluster(ada.bus, ada.client, inbox, impatient)
    controller_bus = await Bus.connect(nats_settings, name="controller", wait_s=30)
    controller = SimulatedController(controller_bus)
    await controller.open()
    heard = asyncio.create_task(cluster.generate(prompt=[1], timeout_ms=60_000))
    request, heard_id = await controller.next_request()
    await controller.send(request, StatusMessage(heard_id, 0, MAC, "running"))
    await controller_bus.flush()
    await controller_bus.close()
    with pytest.raises(Unavailable) as caught:
        await cluster.generate(prompt=[1])
    assert caught.value.code == "no_controller"
    assert not heard.done()
    await ada.bus.publish(request.reply, encode_multiplexed([chunk(heard_id, 0, "a", 1)]))
    await ada.bus.publish(request.reply, encode_multiplexed([done(heard_id)]))
    assert (await heard).text == "a"


async def test_strangers_and_nonsense_do_no_harm(
    bus: Bus, ada: Cluster, controller: SimulatedController
) -> None:
    answer = asyncio.create_task(ada.generate(prompt=[1]))
    request, request_id = await controller.next_request()
    prefix = request.reply.removesuffix(".stream")
    for subject in (request.reply, f"{prefix}.x", f"{prefix}.1.state", f"{prefix}.9.resent"):
        for payload in (b"", b"nonsense", b'{"messages": [{}]}', b'{"messages": 5}'):
            await bus.publish(subject, payload)
    nameless = FailedMessage(None, 0, None, ErrorDetails.of("invalid_request", "whose?"))
    await controller.send(request, nameless, chunk(RequestId("other"), 0, "no", 5))
    await controller.send(request, chunk(request_id, 0, "a", 1), done(request_id))
    assert (await answer).text == "a"
