"""Streams that nobody listens to any more end, and free their place for others."""

import pytest

from shared.messages.request_events import AttemptFailed
from shared.messages.stream import DoneMessage
from tests.worker.listener import Listener
from tests.worker.running_agent import RunningAgent
from tests.worker.streaming import Streaming, streaming

pytestmark = pytest.mark.anyio


async def ended_as_orphan(stream: Streaming) -> None:
    """Return once the owner hears that the client is gone."""

    def events() -> list[AttemptFailed]:
        failed = [e for e in stream.agent.wire.events() if isinstance(e, AttemptFailed)]
        return [event for event in failed if event.request_id == stream.id]

    await stream.agent.wire.wait(lambda: bool(events()))
    (event,) = events()
    assert (event.code, event.terminal_sent) == ("client_gone", True)


async def test_a_stream_whose_client_left_ends_and_what_was_never_a_stream_goes_on(
    slow: RunningAgent,
) -> None:
    async with streaming(slow) as stream, streaming(slow, stream=False) as whole:
        await stream.listener.has_tokens(5)
        await whole.listener.leave()
        await stream.listener.leave()
        heard = len(stream.listener.messages)
        await ended_as_orphan(stream)
        assert stream.request.tokens < 1000, "it came to its end by itself"
        assert len(stream.listener.messages) == heard
        assert whole.request.end is None, "it is never probed"
        assert (await slow.health()).worker.active_requests == 1
        async with streaming(slow, max_tokens=3) as after:
            assert isinstance(await after.listener.ended(), DoneMessage)


async def test_another_who_listens_keeps_a_stream_alive(slow: RunningAgent) -> None:
    async with streaming(slow) as stream:
        await stream.listener.has_tokens(5)
        _, other = await stream.attach()
        await stream.listener.leave()
        await other.until(lambda: list(stream.request.inboxes) == [other.inbox])
        await other.has_tokens(len(other.token_ids()) + 10)
        await stream.cancel()
        assert isinstance(await other.ended(), DoneMessage)
        assert other.indexes() == list(range(len(other.token_ids())))


async def test_who_leaves_for_a_moment_and_comes_back_misses_only_that_moment(
    slow: RunningAgent,
) -> None:
    async with streaming(slow) as stream:
        await stream.listener.has_tokens(5)
        await stream.listener.leave()
        missed_from = len(stream.listener.token_ids())
        await slow.wire.wait(lambda: stream.request.inboxes.doubtful or stream.request.tokens > 500)
        assert stream.request.inboxes.doubtful, "nobody was missed"
        back = await Listener.open(slow.wire.bus, stream.listener.inbox)
        await back.until(lambda: not stream.request.inboxes.doubtful)
        await back.ask(slow.id, request_id=stream.id, from_index=missed_from)
        assert stream.request.end is None
        await back.until(lambda: missed_from in back.indexes())


async def test_multiplexed_streams_end_together_with_their_one_client(slow: RunningAgent) -> None:
    async with streaming(slow, multiplex=True) as first:
        client = first.listener
        async with streaming(slow, multiplex=True, inboxes=[client.inbox]) as second:
            await client.until(lambda: len({m.request_id for m in client.messages}) == 2)
            await client.leave()
            await ended_as_orphan(first)
            await ended_as_orphan(second)
