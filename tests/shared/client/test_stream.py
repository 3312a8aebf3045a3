"""The client library against a simulated controller that answers as each test says."""

import asyncio
from dataclasses import replace

import orjson
import pytest

from shared.bus import Bus
from shared.client import Cluster
from shared.errors import InvalidRequest, StreamFailed, Unavailable
from shared.ids import RequestId
from shared.messages.stream import (
    ChoiceOutput,
    ChunkMessage,
    ErrorDetails,
    FailedMessage,
    StatusMessage,
    StreamMessage,
    encode_multiplexed,
)
from tests.shared.client.simulated_controller import MAC, SimulatedController, chunk, done

pytestmark = pytest.mark.anyio


async def test_an_answer_is_put_together(cluster: Cluster, controller: SimulatedController) -> None:
    answering = asyncio.create_task(cluster.generate("hello", seed=5, n=2))
    request, request_id = await controller.next_request()
    assert request.subject == "mlx.infer.ada.chat"
    assert request.reply.startswith("_INBOX.ada.")
    body = orjson.loads(request.payload)
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert (body["seed"], body["n"]) == (5, 2)
    await controller.send(
        request,
        StatusMessage(request_id, 0, None, "accepted", seed=5),
        chunk(request_id, 0, "On", 1),
        chunk(request_id, 0, "Two", 7, choice=1),
        chunk(request_id, 1, "e", 2),
        ChunkMessage(request_id, 0, MAC, ChoiceOutput(1, 1, [], "", finish_reason="stop")),
        done(request_id, ChoiceOutput(0, 2, [], "!", finish_reason="stop"), tokens=3),
    )
    answer = await asyncio.wait_for(answering, 10)
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("One!", [1, 2], "stop")
    assert [choice.text for choice in answer.choices] == ["One!", "Two"]
    assert (answer.request_id, answer.worker) == (request_id, "mac")
    assert answer.usage.completion_tokens == 3


async def test_multiplexed_messages_and_strangers_on_the_inbox_are_understood(
    bus: Bus, cluster: Cluster, controller: SimulatedController
) -> None:
    answering = asyncio.create_task(cluster.generate(prompt=[1, 2]))
    request, request_id = await controller.next_request()
    await bus.publish(request.reply, b"nonsense")
    other = RequestId("other")
    batch: list[StreamMessage] = [
        chunk(other, 0, "not this", 9),
        chunk(request_id, 0, "this", 1),
        done(request_id),
    ]
    await bus.publish(request.reply, encode_multiplexed([*batch, done(other)]))
    assert (await asyncio.wait_for(answering, 10)).text == "this"


async def test_tokens_that_come_with_a_bad_end_in_one_message_come_before_it(
    bus: Bus, cluster: Cluster, controller: SimulatedController
) -> None:
    stream = cluster.stream("hello")
    reading = asyncio.ensure_future(anext(aiter(stream)))
    request, request_id = await controller.next_request()
    error = ErrorDetails.of("engine_crashed", "the engine ended")
    together: list[StreamMessage] = [
        chunk(request_id, 0, "hi", 1),
        FailedMessage(request_id, 0, MAC, error),
    ]
    await bus.publish(request.reply, encode_multiplexed(together))
    assert (await asyncio.wait_for(reading, 10)).text == "hi"
    with pytest.raises(StreamFailed):
        await anext(aiter(stream))


async def test_leaving_early_cancels_and_ending_does_not(
    bus: Bus, cluster: Cluster, controller: SimulatedController
) -> None:
    whole = asyncio.create_task(cluster.generate("hello"))
    request, request_id = await controller.next_request()
    await controller.send(request, chunk(request_id, 0, "hi", 1), done(request_id))
    await asyncio.wait_for(whole, 10)

    async with cluster.stream("hello") as stream:
        reading = asyncio.ensure_future(anext(aiter(stream)))
        request, request_id = await controller.next_request()
        await controller.send(request, chunk(request_id, 0, "hi", 1))
        assert (await asyncio.wait_for(reading, 10)).text == "hi"
    cancel = await controller.next_cancel()
    assert cancel.subject == "mlx.request.ada.cancel"
    assert orjson.loads(cancel.payload) == {"request_id": request_id}
    assert controller.cancels.empty()


async def test_where_no_controller_is_it_says_so(cluster: Cluster) -> None:
    with pytest.raises(Unavailable, match="no controller takes requests") as caught:
        await cluster.generate("hello")
    assert (caught.value.code, caught.value.retryable) == ("no_controller", True)
    with pytest.raises(Unavailable, match="no controller answers"):
        await cluster.health()
    with pytest.raises(Unavailable, match="no controller answers"):
        await cluster.status("r")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"temperature": 3}, "invalid_request", "temperature"),
        ({"nonsense": 1}, "invalid_request", "nonsense"),
        ({"stream": False}, "invalid_request", "stream"),
        ({"prompt": object()}, "invalid_request", "prompt"),
        ({"prompt": "x" * 2_100_000}, "payload_too_large", None),
    ],
)
async def test_a_bad_request_is_refused_before_it_is_sent(
    cluster: Cluster,
    controller: SimulatedController,
    fields: dict[str, object],
    code: str,
    param: str | None,
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cluster.stream(**{"prompt": "x", **fields})  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.param) == (code, param)
    assert controller.requests.empty()


async def test_a_stream_tells_reasoning_and_calls_while_it_comes_and_as_a_whole(
    cluster: Cluster, controller: SimulatedController
) -> None:
    stream = cluster.stream("hello")
    assert (stream.text, stream.reasoning, stream.tool_calls) == ("", "", [])
    reading = asyncio.ensure_future(anext(aiter(stream)))
    request, request_id = await controller.next_request()
    first = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    more = {"index": 0, "function": {"arguments": "}"}}
    thought = ChoiceOutput(0, 0, [1], "", reasoning="Hm.")
    await controller.send(request, ChunkMessage(request_id, 0, MAC, thought))
    chunk = await asyncio.wait_for(reading, 10)
    assert (chunk.reasoning, chunk.text, chunk.tool_calls) == ("Hm.", "", None)
    assert (stream.reasoning, stream.finish_reason) == ("Hm.", None)
    called = ChoiceOutput(0, 1, [2], "", tool_calls=[first])
    end = ChoiceOutput(0, 2, [3], "", finish_reason="tool_calls", tool_calls=[more])
    ended = replace(done(request_id, end, tokens=3), warnings=("a warning",))
    await controller.send(request, ChunkMessage(request_id, 0, MAC, called), ended)
    pieces = [chunk.tool_calls async for chunk in stream]
    assert pieces == [[first], [more]]
    whole = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert stream.message == {
        "role": "assistant",
        "content": "",
        "reasoning": "Hm.",
        "tool_calls": [whole],
    }
    assert (stream.finish_reason, stream.warnings) == ("tool_calls", ("a warning",))


async def test_of_several_choices_a_stream_has_the_first(
    cluster: Cluster, controller: SimulatedController
) -> None:
    stream = cluster.stream("hello", n=2)
    whole = asyncio.ensure_future(stream.collect())
    request, request_id = await controller.next_request()
    outputs = [ChoiceOutput(c, 0, [1], f"answer {c}", finish_reason="stop") for c in (1, 0)]
    await controller.send(request, done(request_id, *outputs, tokens=2))
    await asyncio.wait_for(whole, 10)
    assert stream.text == "answer 0"
