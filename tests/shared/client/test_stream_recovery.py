"""What a stream's client does when messages are lost: it asks, and the stream is whole again."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace

import orjson
import pytest

from shared.bus import IncomingMessage
from shared.client import Cluster, Completion
from shared.errors import StreamFailed, StreamSilent
from shared.ids import WorkerId
from shared.messages.stream import ChoiceOutput, ErrorDetails, FailedMessage, StatusMessage
from tests.shared.client.conftest import QUICK
from tests.shared.client.simulated_controller import MAC, WAIT_S, SimulatedController, chunk, done

pytestmark = pytest.mark.anyio


async def ended(answering: "asyncio.Task[Completion]") -> Completion:
    return await asyncio.wait_for(answering, WAIT_S)


def reconnect(cluster: Cluster) -> None:
    """As after a new connection: messages may be lost, so the client asks at once."""
    cluster.bus.connections += 1


@asynccontextmanager
async def keeping_alive(
    controller: SimulatedController,
    request: IncomingMessage,
    status: StatusMessage,
    every_s: float = 0.2,
) -> AsyncIterator[None]:
    """Meanwhile the stream hears this again and again."""

    async def speak() -> None:
        while True:
            await controller.send(request, status)
            await asyncio.sleep(every_s)

    speaking = asyncio.create_task(speak())
    try:
        yield
    finally:
        speaking.cancel()
        with suppress(asyncio.CancelledError):
            await speaking


async def test_a_gap_is_repaired_by_the_worker_from_the_first_index_that_is_missing(
    cluster: Cluster, controller: SimulatedController
) -> None:
    answering = asyncio.create_task(cluster.generate("hello"))
    request, request_id = await controller.next_request()
    await controller.send(
        request,
        StatusMessage(request_id, 0, None, "accepted", seed=5),
        chunk(request_id, 0, "a", 1),
        chunk(request_id, 3, "d", 4),
    )
    resend = await controller.next_resend()
    assert resend.subject == "mlx.stream.mac.ada.resend"
    assert orjson.loads(resend.payload) == {"request_id": request_id, "from_index": 1}
    assert resend.reply.startswith("_INBOX.ada.") and resend.reply != request.reply
    await controller.tell_resend_state(resend, "running")
    await controller.send(
        resend,
        chunk(request_id, 1, "b", 2),
        chunk(request_id, 2, "c", 3),
        chunk(request_id, 3, "d", 4),
    )
    await controller.send(request, done(request_id, tokens=4))
    answer = await ended(answering)
    assert (answer.text, answer.token_ids) == ("abcd", [1, 2, 3, 4])


async def test_a_stream_whose_leader_and_worker_end_together_goes_on_from_what_came(
    cluster: Cluster, controller: SimulatedController
) -> None:
    answering = asyncio.create_task(cluster.generate("hello", seed=5))
    request, request_id = await controller.next_request()
    ghost = replace(chunk(request_id, 0, "añ", 1, 2, attempt=2), worker=WorkerId("ghost"))
    late = replace(chunk(request_id, 4, "late", 9, attempt=2), worker=WorkerId("ghost"))
    await controller.send(
        request, StatusMessage(request_id, 0, None, "accepted", seed=5), ghost, late
    )
    again, same_id = await controller.next_request()
    first, second = orjson.loads(request.payload), orjson.loads(again.payload)
    assert same_id == request_id and first["seed"] == 5
    assert second == {**first, "resume": {"token_ids": [1, 2], "text_sent": 2}}
    await controller.send(
        again,
        StatusMessage(request_id, 1001, MAC, "accepted", seed=5),
        chunk(request_id, 2, "c", 3, attempt=1001),
        done(
            request_id,
            ChoiceOutput(0, 3, [], "", finish_reason="stop"),
            tokens=3,
            attempt=1001,
        ),
    )
    answer = await ended(answering)
    assert (answer.text, answer.token_ids) == ("añc", [1, 2, 3])


async def test_it_goes_on_from_what_was_brought_and_what_came(
    cluster: Cluster, controller: SimulatedController
) -> None:
    resume = {"token_ids": [7, 8], "text_sent": 5}
    answering = asyncio.create_task(cluster.generate("hello", resume=resume))
    request, request_id = await controller.next_request()
    ghost = replace(chunk(request_id, 2, "xyz", 1), worker=WorkerId("ghost"))
    await controller.send(request, ghost)
    again, _ = await controller.next_request()
    assert orjson.loads(again.payload)["resume"] == {"token_ids": [7, 8, 1], "text_sent": 8}
    await controller.send(again, done(request_id, tokens=3))
    assert (await ended(answering)).token_ids == [1]


async def test_of_several_answers_all_comes_again_and_what_is_known_is_dropped(
    cluster: Cluster, controller: SimulatedController
) -> None:
    answering = asyncio.create_task(cluster.generate("hello", n=2))
    request, request_id = await controller.next_request()
    ghost = replace(chunk(request_id, 0, "a", 1), worker=WorkerId("ghost"))
    await controller.send(request, ghost)
    again, _ = await controller.next_request()
    assert again.payload == request.payload
    ends = [ChoiceOutput(each, 1, [], "", finish_reason="stop") for each in (0, 1)]
    await controller.send(
        again,
        chunk(request_id, 0, "a", 1),
        chunk(request_id, 0, "b", 2, choice=1),
        done(request_id, *ends, tokens=2),
    )
    answer = await ended(answering)
    assert [(each.text, each.token_ids) for each in answer.choices] == [("a", [1]), ("b", [2])]


async def test_a_lost_end_is_had_from_the_worker_that_the_controller_names(
    cluster: Cluster, controller: SimulatedController
) -> None:
    answering = asyncio.create_task(cluster.generate("hello"))
    request, request_id = await controller.next_request()
    await controller.send(request, StatusMessage(request_id, 0, None, "accepted", seed=5))
    question = await controller.next_question()  # after a silence
    assert question.subject == "mlx.request.ada.status"
    assert orjson.loads(question.payload) == {"request_id": request_id}
    await controller.tell_state(question, "finished", MAC)
    resend = await controller.next_resend()
    assert orjson.loads(resend.payload)["from_index"] == 0
    await controller.tell_resend_state(resend, "finished")
    await controller.send(resend, chunk(request_id, 0, "hi", 1), done(request_id))
    assert (await ended(answering)).text == "hi"
    assert controller.cancels.empty()


async def test_an_end_of_the_controllers_own_that_was_lost_is_had_by_publishing_again(
    cluster: Cluster, controller: SimulatedController
) -> None:
    answering = asyncio.create_task(cluster.generate("hello"))
    request, request_id = await controller.next_request()
    await controller.send(request, StatusMessage(request_id, 0, None, "queued"))
    reconnect(cluster)
    await controller.tell_state(await controller.next_question(), "failed")
    again, _ = await controller.next_request()
    assert (again.payload, again.reply) == (request.payload, request.reply)
    error = ErrorDetails.of("no_worker", "nobody is there")
    await controller.send(again, FailedMessage(request_id, 0, None, error))
    with pytest.raises(StreamFailed) as caught:
        await ended(answering)
    assert caught.value.code == "no_worker"


async def test_a_worker_that_is_gone_is_asked_after_at_the_controllers(
    cluster: Cluster, controller: SimulatedController
) -> None:
    answering = asyncio.create_task(cluster.generate("hello"))
    request, request_id = await controller.next_request()
    await controller.send(request, chunk(request_id, 0, "a", 1))
    reconnect(cluster)
    gone = WorkerId("gone")
    await controller.tell_state(await controller.next_question(), "running", gone)
    runs = StatusMessage(request_id, 0, None, "running")
    async with keeping_alive(controller, request, runs):  # so it is not the silence that asks
        await controller.tell_state(await controller.next_question(), "running", MAC)
        resend = await controller.next_resend()
    await controller.send(resend, chunk(request_id, 1, "b", 2), done(request_id, tokens=2))
    assert (await ended(answering)).text == "ab"


async def test_what_neither_worker_nor_controller_kept_is_published_again_and_goes_on(
    cluster: Cluster, controller: SimulatedController
) -> None:
    answering = asyncio.create_task(cluster.generate("hello"))
    request, request_id = await controller.next_request()
    await controller.send(request, chunk(request_id, 0, "a", 1))
    reconnect(cluster)
    await controller.tell_state(await controller.next_question(), "finished", MAC)
    await controller.tell_resend_state(await controller.next_resend(), "unknown")
    again, _ = await controller.next_request()
    await controller.send(
        again,
        chunk(request_id, 0, "a", 1, attempt=1),
        chunk(request_id, 1, "b", 2, attempt=1),
        done(request_id, tokens=2, attempt=1),
    )
    assert (await ended(answering)).text == "ab"


async def test_where_neither_the_leader_nor_a_worker_has_it_attempts_are_counted_anew(
    cluster: Cluster, controller: SimulatedController
) -> None:
    answering = asyncio.create_task(cluster.generate("hello"))
    request, request_id = await controller.next_request()
    await controller.send(request, chunk(request_id, 0, "a", 1, attempt=2))
    reconnect(cluster)
    await controller.tell_state(await controller.next_question(), "unknown")
    again, same_id = await controller.next_request()
    assert same_id == request_id
    assert orjson.loads(again.payload)["resume"] == {"token_ids": [1], "text_sent": 1}
    await controller.send(again, chunk(request_id, 1, "b", 2), done(request_id, tokens=2))
    assert (await ended(answering)).text == "ab"


async def test_what_had_not_begun_is_published_as_it_was_where_nobody_has_it(
    cluster: Cluster, controller: SimulatedController
) -> None:
    answering = asyncio.create_task(cluster.generate("hello"))
    request, request_id = await controller.next_request()
    await controller.send(request, StatusMessage(request_id, 1, MAC, "accepted", seed=5))
    reconnect(cluster)
    await controller.tell_state(await controller.next_question(), "unknown")
    again, _ = await controller.next_request()
    assert again.payload == request.payload
    await controller.send(again, chunk(request_id, 0, "hi", 1), done(request_id))
    assert (await ended(answering)).text == "hi"


async def test_the_leader_says_which_attempt_counts(
    cluster: Cluster, controller: SimulatedController
) -> None:
    answering = asyncio.create_task(cluster.generate("hello"))
    request, request_id = await controller.next_request()
    await controller.send(request, chunk(request_id, 0, "a", 1, attempt=2))
    reconnect(cluster)
    await controller.tell_state(await controller.next_question(), "running", MAC)
    resend = await controller.next_resend()
    await controller.send(resend, chunk(request_id, 1, "b", 2), done(request_id, tokens=2))
    assert (await ended(answering)).text == "ab"


async def test_silence_is_never_taken_for_an_end_but_given_up_in_the_end(
    cluster: Cluster, controller: SimulatedController
) -> None:
    answering = asyncio.create_task(cluster.generate("hello"))
    request, request_id = await controller.next_request()
    await controller.send(request, chunk(request_id, 0, "a", 1))
    began = time.monotonic()
    await controller.next_question()
    await controller.next_resend()
    with pytest.raises(StreamSilent) as caught:
        await ended(answering)
    assert (caught.value.code, caught.value.retryable) == ("stream_silent", True)
    assert time.monotonic() - began > 0.9 * QUICK.silence_limit_s
    assert orjson.loads((await controller.next_cancel()).payload) == {"request_id": request_id}


async def test_an_attempt_that_does_not_count_is_no_sign_of_life(
    cluster: Cluster, controller: SimulatedController
) -> None:
    """As from a worker that was cut off, and does not know yet that another one serves it."""
    answering = asyncio.create_task(cluster.generate("hello"))
    request, request_id = await controller.next_request()
    await controller.send(request, chunk(request_id, 0, "a", 1, attempt=1))
    old = StatusMessage(request_id, 0, None, "running")
    async with keeping_alive(controller, request, old, every_s=QUICK.silence_s / 4):
        with pytest.raises(StreamSilent):
            await ended(answering)


async def test_a_slow_reader_loses_its_own_stream_and_no_other_on_its_connection(
    cluster: Cluster, controller: SimulatedController
) -> None:
    async with cluster.stream("slow") as slow, cluster.stream("quick") as quick:
        reading = asyncio.ensure_future(anext(aiter(slow)))
        request, slow_id = await controller.next_request()
        await controller.send(request, chunk(slow_id, 0, "a", 1))
        assert (await asyncio.wait_for(reading, WAIT_S)).text == "a"

        answering = asyncio.create_task(quick.collect())
        quick_request, quick_id = await controller.next_request()
        large = "x" * 2**21
        for index in range(1, 11):
            await controller.send(request, chunk(slow_id, index, large, index))
        await controller.send(quick_request, chunk(quick_id, 0, "hi", 1), done(quick_id))
        assert (await ended(answering)).text == "hi"

        with pytest.raises(StreamFailed) as caught:
            await anext(aiter(slow))
        assert (caught.value.code, caught.value.retryable) == ("slow_consumer", True)
    assert orjson.loads((await controller.next_cancel()).payload) == {"request_id": slow_id}


async def test_a_stream_that_is_read_long_after_it_was_made_has_its_whole_time(
    cluster: Cluster, controller: SimulatedController, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = cluster.stream("hello")
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 60)
    monkeypatch.setattr("shared.client.stream.time", later)
    answering = asyncio.create_task(stream.collect())
    await controller.next_request()
    published_again = asyncio.create_task(controller.next_request())
    try:
        await asyncio.wait({answering, published_again}, return_when=asyncio.FIRST_COMPLETED)
        assert not answering.done(), answering.exception()
    finally:
        published_again.cancel()
    request, request_id = published_again.result()
    await controller.send(request, chunk(request_id, 0, "hi", 1), done(request_id))
    assert (await ended(answering)).text == "hi"
