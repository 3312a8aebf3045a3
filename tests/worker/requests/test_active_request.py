"""What a request's client and owner hear, from its first token to its end."""

import pytest

from shared import subjects
from shared.messages.request_events import AttemptFailed, RequestCompleted, TokensEmitted
from shared.messages.stream import ChunkMessage, DoneMessage
from shared.messages.stream import decode as decode_stream
from tests.worker.running_agent import CLIENT, OWNER, RunningAgent, as_json

pytestmark = pytest.mark.anyio


# Streams.


async def test_a_dispatch_is_acked_and_its_tokens_stream_to_one_end(agent: RunningAgent) -> None:
    dispatch = agent.dispatch(prompt="~%#@!", max_tokens=10)  # nobody has begun like that
    reply = await agent.send(dispatch)
    assert (reply.worker, reply.boot_id) == (agent.id, agent.agent.boot_id)
    (result,) = reply.results
    assert (result.request_id, result.client, result.attempt) == (dispatch.request_id, CLIENT, 0)
    assert result.refusal is None

    stream = agent.stream(dispatch)
    done = await stream.done()
    outputs = stream.outputs()
    assert [output.index for output in outputs] == list(range(10))
    assert [output.finish_reason for output in outputs] == [None] * 9 + ["length"]
    assert all(message.worker == agent.id for message in stream.messages)
    usage = done.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (5, 0, 10)
    assert done.timings.ttft_ms >= done.timings.prefill_ms >= 0
    await agent.settle()
    assert stream.messages[-1] == done and len(stream.ends) == 1


async def test_without_streaming_there_is_exactly_one_message_with_the_whole_text(
    agent: RunningAgent,
) -> None:
    streamed = await agent.start(max_tokens=20, logprobs=2)
    await streamed.done()
    whole = await agent.start(max_tokens=20, logprobs=2, stream=False)
    done = await whole.done()
    await agent.settle()
    assert whole.messages == [done]
    (output,) = done.outputs
    assert (output.index, output.text) == (0, streamed.text())
    assert output.token_ids == streamed.token_ids()
    assert output.finish_reason == "length"
    assert output.logprobs is not None and len(output.logprobs) == 20
    assert [entry["token_id"] for entry in output.logprobs] == output.token_ids


async def test_two_answers_to_one_prompt_are_two_choices_of_one_stream(
    agent: RunningAgent,
) -> None:
    stream = await agent.start(n=2, temperature=1.0, max_tokens=15)
    done = await stream.done()
    for choice in (0, 1):
        assert [output.index for output in stream.outputs(choice)] == list(range(15))
    assert stream.token_ids(0) != stream.token_ids(1)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (5, 30)
    assert len(stream.ends) == 1


async def test_prompts_times_n_are_choices_in_their_order(agent: RunningAgent) -> None:
    prompts = ["one", "another"]
    alone = []
    for prompt in prompts:
        stream = await agent.start(prompt=prompt)
        await stream.done()
        alone.append(stream.text())
    whole = await agent.start(prompt=prompts, n=2, stream=False)
    done = await whole.done()
    assert [output.choice for output in done.outputs] == [0, 1, 2, 3]
    assert [output.text for output in done.outputs] == [alone[0]] * 2 + [alone[1]] * 2
    assert done.usage.prompt_tokens == len("one") + len("another")
    assert "choices" in as_json(agent.wire.on(whole.dispatch.inboxes[0])[0])


async def test_token_ids_and_messages_are_prompts_too(agent: RunningAgent) -> None:
    by_ids = await agent.start(prompt=[40, 41, 42])
    assert (await by_ids.done()).usage.prompt_tokens == 3
    chat = await agent.start(messages=[{"role": "user", "content": "hi"}])
    assert (await chat.done()).usage.prompt_tokens > len("user\nhi\nassistant\n")


async def test_multiplexed_streams_of_one_inbox_share_messages(agent: RunningAgent) -> None:
    inbox = agent.wire.new_inbox()
    dispatches = [agent.dispatch(inboxes=[inbox], multiplex=True, max_tokens=20) for _ in range(3)]
    await agent.send(*dispatches)
    streams = [agent.stream(dispatch) for dispatch in dispatches]
    for stream in streams:
        await stream.done()
        assert len(stream.token_ids()) == 20
    bodies = [as_json(payload) for payload in agent.wire.on(inbox)]
    assert all(set(body) == {"messages"} for body in bodies)
    assert max(len(body["messages"]) for body in bodies) == 3


async def test_the_same_seed_gives_the_same_answer_and_another_seed_another(
    agent: RunningAgent,
) -> None:
    texts = []
    for seed in (5, 5, 6):
        stream = await agent.start(seed=seed, temperature=1.0, max_tokens=20)
        await stream.done()
        texts.append(stream.token_ids())
    assert texts[0] == texts[1] != texts[2]


# What the owner hears.


async def test_the_owner_hears_of_every_token_and_of_the_end_before_the_client_does(
    agent: RunningAgent,
) -> None:
    start = len(agent.wire.log)
    stream = await agent.start(n=2, temperature=1.0, max_tokens=25)
    await stream.done()
    await agent.settle()

    known = {0: 0, 1: 0}
    texts = {0: 0, 1: 0}
    finished = False
    for message in agent.wire.log[start:]:
        if message.subject == subjects.request_event(OWNER, agent.id):
            for event in as_json(message.payload)["events"]:
                if event["request_id"] != stream.dispatch.request_id:
                    continue
                if event["type"] == "tokens":
                    assert event["index"] == known[event["choice"]]
                    known[event["choice"]] += len(event["token_ids"])
                    texts[event["choice"]] = event["text_sent"]
                finished = finished or event["type"] == "finished"
        elif message.subject == stream.dispatch.inboxes[0]:
            for sent in decode_stream(message.payload):
                parts = [sent.output] if isinstance(sent, ChunkMessage) else []
                if isinstance(sent, DoneMessage):
                    parts = list(sent.outputs)
                    assert finished, "the client's end came before the owner's event"
                for part in parts:
                    assert part.index + len(part.token_ids) <= known[part.choice]
    assert known == {0: 25, 1: 25}
    assert texts == {choice: len(stream.text(choice)) for choice in (0, 1)}


async def test_the_owner_hears_of_the_tokens_of_a_request_without_streaming(
    agent: RunningAgent,
) -> None:
    whole = await agent.start(stream=False, max_tokens=8)
    done = await whole.done()
    events = whole.events()
    tokens = [t for event in events if isinstance(event, TokensEmitted) for t in event.token_ids]
    assert tokens == done.outputs[0].token_ids
    assert isinstance(events[-1], RequestCompleted)


async def test_the_owner_hears_of_a_failure_with_its_code(agent: RunningAgent) -> None:
    stream = await agent.start(prompt=[10**6])
    failed = await stream.failed()
    (event,) = stream.events()
    assert isinstance(event, AttemptFailed)
    assert (event.code, event.message) == (failed.error.code, failed.error.message)


# Resuming.


async def test_usage_and_text_sent_of_a_resumed_request_are_those_of_the_whole(
    agent: RunningAgent,
) -> None:
    rest = await agent.start(max_tokens=20, resume={"token_ids": [40] * 5, "text_sent": 5})
    assert (await rest.done()).usage.completion_tokens == 20
    sent = [event.text_sent for event in rest.events() if isinstance(event, TokensEmitted)]
    assert sent[-1] == 5 + len(rest.text())


async def test_a_resumed_request_cancelled_in_the_queue_keeps_its_index(
    narrow: RunningAgent,
) -> None:
    blocker = await narrow.start(max_tokens=900)
    waiting = await narrow.start(resume={"token_ids": [40] * 5, "text_sent": 5})
    await narrow.cancel(waiting)
    await waiting.done()
    indexes = [output.index for output in waiting.outputs()]
    await narrow.cancel_all(blocker)
    assert indexes == [5]
