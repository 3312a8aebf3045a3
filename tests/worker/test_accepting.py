"""The worker says that a stream is accepted: from then on it is answered for."""

import pytest

from shared.messages.dispatch import Continuation
from shared.messages.stream import StatusMessage
from tests.worker.listener import Listener
from tests.worker.running_agent import RunningAgent
from tests.worker.streaming import streaming

pytestmark = pytest.mark.anyio


async def test_a_stream_hears_first_that_it_is_accepted_and_with_which_seed(
    agent: RunningAgent,
) -> None:
    stream = await agent.start(attempt=1, seed=2**63)
    await stream.done()
    (accepted,) = [
        each for each in stream.messages if isinstance(each, StatusMessage) and each.seed
    ]
    name = stream.dispatch.request_id
    assert (
        stream.messages[0] == accepted == StatusMessage(name, 1, agent.id, "accepted", seed=2**63)
    )


async def test_what_waits_here_hears_that_it_is_accepted_and_then_that_it_is_queued(
    narrow: RunningAgent,
) -> None:
    blocker = await narrow.start(max_tokens=900)
    waiting = await narrow.start()
    await waiting.until(lambda stream: len(stream.statuses) >= 2)
    assert waiting.statuses[:2] == ["accepted", "queued"]
    await narrow.cancel_all(blocker)
    await waiting.done()


async def test_a_later_attempt_is_accepted_without_a_word(agent: RunningAgent) -> None:
    """Its client was told with the first one: it is one request, whoever serves it."""
    first = agent.dispatch(attempt=2).model_copy(update={"retries": 1})
    goes_on = agent.dispatch(attempt=2, goes_on=Continuation(token_ids={0: [5]}))
    for dispatch in (first, goes_on):
        await agent.send(dispatch)
        stream = agent.stream(dispatch)
        await stream.done()
        assert "accepted" not in stream.statuses


async def test_who_does_not_stream_is_not_told(agent: RunningAgent) -> None:
    stream = await agent.start(stream=False)
    await stream.done()
    assert len(stream.messages) == 1


async def test_a_dispatch_that_is_refused_is_not_accepted(narrow: RunningAgent) -> None:
    dispatches = [narrow.dispatch(max_tokens=900) for _ in range(5)]
    results = (await narrow.send(*dispatches)).results
    assert [result.refusal is None for result in results] == [True] * 4 + [False]
    await narrow.settle()
    assert [narrow.stream(each).statuses[:1] for each in dispatches] == [["accepted"]] * 4 + [[]]


# Said again.


async def test_who_listens_later_hears_it_before_all_that_was_said(slow: RunningAgent) -> None:
    async with streaming(slow) as stream:
        await stream.listener.has_tokens(3)
        _, late = await stream.attach()
        await late.has_tokens(3)
        assert late.messages[0] == stream.listener.messages[0]
        assert late.statuses[0] == "accepted" and "accepted" not in late.statuses[1:]


@pytest.mark.parametrize(("index", "told"), [(0, True), (1, False)])
async def test_who_asks_for_all_hears_it_and_who_asks_for_the_rest_does_not(
    slow: RunningAgent, index: int, told: bool
) -> None:
    async with streaming(slow) as stream:
        await stream.listener.has_tokens(3)
        late = await Listener.open(slow.wire.bus)
        await late.ask(slow.id, request_id=stream.id, from_index=index)
        await late.has_tokens(3 - index)
        assert ("accepted" in late.statuses) is told


async def test_of_a_stream_that_has_ended_it_is_not_said_again(slow: RunningAgent) -> None:
    async with streaming(slow, max_tokens=2) as stream:
        await stream.listener.ended()
        late = await Listener.open(slow.wire.bus)
        await late.ask(slow.id, request_id=stream.id)
        await late.ended()
        assert late.statuses == []
