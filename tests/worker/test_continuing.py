"""A worker goes on where another attempt was: nothing twice, nothing lost, nothing otherwise."""

from typing import Any

import pytest

from shared.messages.dispatch import Continuation
from shared.messages.request_events import RequestCompleted, TokensEmitted
from shared.messages.stream import ChoiceOutput
from tests.worker.listener import Listener
from tests.worker.running_agent import ClientStream, RunningAgent

pytestmark = pytest.mark.anyio

SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 7, "max_tokens": 20}
WAYS = pytest.mark.parametrize(
    "way",
    [
        {"max_tokens": 20},
        SEEDED,
        {**SEEDED, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
        {**SEEDED, "logprobs": 2},
    ],
    ids=["greedy", "seeded", "penalised", "logprobs"],
)


def emitted(stream: ClientStream) -> list[TokensEmitted]:
    """What the owner was told of the tokens of a stream."""
    events = (event for event in stream.events() if isinstance(event, TokensEmitted))
    return [event for event in events if event.attempt == stream.dispatch.attempt]


async def undisturbed(agent: RunningAgent, **fields: Any) -> ClientStream:
    stream = await agent.start(**fields)
    await stream.done()
    return stream


def words(outputs: list[ChoiceOutput]) -> list[tuple[Any, ...]]:
    return [(o.index, o.token_ids, o.text, o.logprobs, o.finish_reason) for o in outputs]


@WAYS
@pytest.mark.parametrize("known", [1, 7, 19])
async def test_a_stream_goes_on_with_the_last_token_that_may_not_have_come(
    agent: RunningAgent, way: dict[str, Any], known: int
) -> None:
    whole = await undisturbed(agent, **way)
    before = Continuation(token_ids={0: whole.token_ids()[:known]}, first_token_ms=123.0)
    stream = await agent.start(goes_on=before, attempt=1, elapsed_ms=500.0, **way)
    done = await stream.done()
    assert words(stream.outputs()) == words(whole.outputs())[known - 1 :]
    assert (await whole.done()).usage.completion_tokens == done.usage.completion_tokens == 20
    assert done.timings.ttft_ms == 123.0 and done.timings.decode_ms >= 377.0
    events = emitted(stream)
    assert [event.index for event in events] == list(range(known, 20))
    assert [event.text_sent for event in events] == [
        event.text_sent for event in emitted(whole)[known:]
    ]


@WAYS
async def test_without_streaming_the_one_message_has_the_whole_answer(
    agent: RunningAgent, way: dict[str, Any]
) -> None:
    whole = await (await agent.start(stream=False, **way)).done()
    before = Continuation(token_ids={0: whole.outputs[0].token_ids[:9]}, first_token_ms=1.0)
    stream = await agent.start(goes_on=before, attempt=1, stream=False, **way)
    done = await stream.done()
    assert stream.messages == [done]
    assert (done.outputs, done.usage.completion_tokens) == (whole.outputs, 20)


async def test_a_choice_that_had_ended_ends_again_as_it_did_and_the_others_go_on(
    agent: RunningAgent,
) -> None:
    way: dict[str, Any] = {**SEEDED, "n": 3, "logit_bias": {}, "max_tokens": 400}
    whole = await undisturbed(agent, **way)
    reasons = [whole.outputs(choice)[-1].finish_reason for choice in range(3)]
    told = {event.choice: event.finish_reason for event in emitted(whole)}
    ended = min(told, key=lambda choice: len(whole.token_ids(choice)))
    length = len(whole.token_ids(ended))
    assert told[ended] == reasons[ended] is not None
    known = {choice: whole.token_ids(choice)[: length + 1] for choice in range(3)}
    first = emitted(whole)[0]
    before = Continuation(
        token_ids=known,
        finish_reasons={ended: "stop"},
        first_token_ms=1.0,
        cached_tokens=first.cached_tokens,
    )
    stream = await agent.start(goes_on=before, attempt=1, **way)
    done = await stream.done()
    for choice in range(3):
        heard, said = words(stream.outputs(choice)), words(whole.outputs(choice))
        assert heard == said[-len(heard) :]
        assert heard[0][0] >= len(known[choice]) - 1
        assert heard[-1][4] == reasons[choice]
    assert done.usage == (await whole.done()).usage
    assert ended not in {event.choice for event in emitted(stream)}


async def test_when_all_had_ended_the_end_is_all_that_comes(agent: RunningAgent) -> None:
    whole = await undisturbed(agent, **SEEDED)
    before = Continuation(token_ids={0: whole.token_ids()}, first_token_ms=1.0)
    stream = await agent.start(goes_on=before, attempt=1, **SEEDED)
    done = await stream.done()
    assert words(stream.outputs()) == words(whole.outputs())[-1:]
    assert done.usage.completion_tokens == 20
    assert emitted(stream) == []
    await agent.wire.wait(lambda: _is_finished(stream))


async def test_who_missed_more_than_the_last_token_is_told_from_where_it_asks(
    agent: RunningAgent,
) -> None:
    whole = await undisturbed(agent, **SEEDED)
    before = Continuation(token_ids={0: whole.token_ids()[:15]}, first_token_ms=1.0)
    stream = await agent.start(goes_on=before, attempt=1, **SEEDED)
    await stream.done()
    late = await Listener.open(agent.wire.bus)
    await late.ask(agent.id, request_id=stream.dispatch.request_id, from_index=3)
    await late.ended()
    assert (late.token_ids(), late.text()) == (
        whole.token_ids()[3:],
        "".join(output.text for output in whole.outputs()[3:]),
    )


async def test_what_the_client_brought_is_neither_said_nor_told_again(agent: RunningAgent) -> None:
    whole = await undisturbed(agent, **SEEDED)
    token_ids = whole.token_ids()
    sent = "".join(output.text for output in whole.outputs()[:5])
    resume = {"token_ids": token_ids[:5], "text_sent": len(sent)}
    before = Continuation(token_ids={0: token_ids[:9]}, first_token_ms=1.0)
    stream = await agent.start(goes_on=before, attempt=1, resume=resume, **SEEDED)
    done = await stream.done()
    assert words(stream.outputs()) == words(whole.outputs())[8:]
    assert done.usage.completion_tokens == 20
    late = await Listener.open(agent.wire.bus)
    await late.ask(agent.id, request_id=stream.dispatch.request_id, from_index=0)
    await late.ended()
    assert late.token_ids() == token_ids[5:]


async def test_cancelled_while_it_waits_to_go_on_all_tokens_count(narrow: RunningAgent) -> None:
    running = await narrow.start(max_tokens=900)
    await running.started()
    before = Continuation(token_ids={0: [64, 65, 66]}, first_token_ms=1.0)
    stream = await narrow.start(goes_on=before, attempt=1)
    assert (await narrow.cancel(stream)).ok
    done = await stream.done()
    (last,) = stream.outputs()
    assert (last.index, last.token_ids, last.finish_reason) == (3, [], "cancelled")
    assert done.usage.completion_tokens == 3
    await narrow.cancel_all(running)


@pytest.mark.parametrize(
    ("brought", "index"), [({}, 0), ({"resume": {"token_ids": [64, 65], "text_sent": 2}}, 2)]
)
async def test_without_streaming_a_cancelled_answer_has_only_what_is_in_its_one_message(
    narrow: RunningAgent, brought: dict[str, Any], index: int
) -> None:
    """The last worker's tokens come again from the first one on, and did not yet."""
    running = await narrow.start(max_tokens=900)
    before = Continuation(token_ids={0: [64, 65, 66]}, first_token_ms=1.0)
    whole = await narrow.start(goes_on=before, attempt=1, stream=False, **brought)
    assert (await narrow.cancel(whole)).ok
    done = await whole.done()
    (last,) = done.outputs
    assert (last.index, last.token_ids, last.finish_reason) == (index, [], "cancelled")
    assert done.usage.completion_tokens == index
    await narrow.cancel_all(running)


@pytest.mark.parametrize("logprobs", [None, 0])
async def test_an_answer_that_goes_on_as_it_began_is_none_that_differs(
    agent: RunningAgent, logprobs: int | None
) -> None:
    before = (await agent.health()).worker.differing_requests
    way = {**SEEDED, "logprobs": logprobs}
    whole = await undisturbed(agent, **way)
    events = emitted(whole)
    for known in (1, 10, 20):
        sent = {0: events[known - 1].text_sent}
        goes_on = Continuation(token_ids={0: whole.token_ids()[:known]}, text_sent=sent)
        await (await agent.start(goes_on=goes_on, attempt=1, **way)).done()
    assert (await agent.health()).worker.differing_requests == before


@pytest.mark.parametrize(
    ("logprobs", "token_ids", "text_sent"),
    [(None, [64, 65, 66], {0: 7}), (0, [64, 65, 66], {})],
    ids=["other text", "other tokens"],
)
async def test_an_answer_that_this_worker_makes_otherwise_is_counted_once(
    agent: RunningAgent,
    logprobs: int | None,
    token_ids: list[int],
    text_sent: dict[int, int],
) -> None:
    before = (await agent.health()).worker.differing_requests
    goes_on = Continuation(token_ids={0: token_ids}, text_sent=text_sent)
    stream = await agent.start(goes_on=goes_on, attempt=1, logprobs=logprobs, **SEEDED)
    await stream.done()
    assert (await agent.health()).worker.differing_requests == before + 1


def _is_finished(stream: ClientStream) -> bool:
    return any(isinstance(event, RequestCompleted) for event in stream.events())
