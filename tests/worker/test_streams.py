"""What a stream said is said again: to who missed some, and to who came late."""

from typing import Any

import pytest

from shared.ids import ClientName, RequestId
from shared.messages.stream import DoneMessage, FailedMessage
from tests.worker.listener import Listener
from tests.worker.running_agent import CLIENT, LIMIT_S, RunningAgent
from tests.worker.streaming import streaming

pytestmark = pytest.mark.anyio


# Saying again.


@pytest.mark.parametrize("index", [0, 1, 5])
async def test_what_a_running_stream_said_is_said_again_from_an_index_and_no_more(
    slow: RunningAgent, index: int
) -> None:
    async with streaming(slow) as stream:
        await stream.listener.has_tokens(8)
        late = await Listener.open(slow.wire.bus)
        answer = await late.ask(slow.id, request_id=stream.id, from_index=index)
        assert (answer.state, answer.request_id) == ("running", stream.id)
        await late.has_tokens(8 - index)
        await stream.listener.has_tokens(len(stream.listener.token_ids()) + 3)
        said = late.token_ids()
        assert late.indexes() == list(range(index, index + len(said)))
        assert said == stream.listener.token_ids()[index : index + len(said)]
        await stream.listener.has_tokens(len(stream.listener.token_ids()) + 3)
        assert late.token_ids() == said, "it asked for what was, not for what comes"


async def test_beyond_what_was_said_there_is_nothing_yet(slow: RunningAgent) -> None:
    async with streaming(slow) as stream:
        await stream.listener.has_tokens(2)
        late = await Listener.open(slow.wire.bus)
        assert (await late.ask(slow.id, request_id=stream.id, from_index=1000)).state == "running"
        await stream.listener.has_tokens(5)
        assert late.messages == []


@pytest.mark.parametrize("index", [0, 4, 6, 1000])
async def test_an_ended_stream_is_said_again_with_its_end(slow: RunningAgent, index: int) -> None:
    async with streaming(slow, max_tokens=6) as stream:
        end = await stream.listener.ended()
        assert isinstance(end, DoneMessage) and end.usage.completion_tokens == 6
        late = await Listener.open(slow.wire.bus)
        assert (await late.ask(slow.id, request_id=stream.id, from_index=index)).state == "finished"
        again = await late.ended()
        assert isinstance(again, DoneMessage) and (again.usage, again.timings) == (
            end.usage,
            end.timings,
        )
        assert late.messages[-1] == again and len(late.ends) == 1
        said = stream.listener.token_ids()[index:]
        assert late.token_ids()[: len(said)] == said
        assert len(late.token_ids()) <= max(1, len(said)), "the last word comes in any case"


async def test_a_failed_stream_is_said_again_with_its_error(slow: RunningAgent) -> None:
    async with streaming(slow, prompt=[10**6]) as stream:
        end = await stream.listener.ended()
        late = await Listener.open(slow.wire.bus)
        assert (await late.ask(slow.id, request_id=stream.id)).state == "finished"
        assert isinstance(end, FailedMessage) and await late.ended() == end


async def test_one_choice_of_several_is_said_again_alone(slow: RunningAgent) -> None:
    async with streaming(slow, n=2, temperature=1.0, max_tokens=5) as stream:
        await stream.listener.ended()
        late = await Listener.open(slow.wire.bus)
        await late.ask(slow.id, request_id=stream.id, choice=1, from_index=2)
        await late.ended()
        assert late.token_ids(0) == []
        assert late.token_ids(1) == stream.listener.token_ids(1)[2:]
        whole = await Listener.open(slow.wire.bus)
        await whole.ask(slow.id, request_id=stream.id)
        await whole.ended()
        for choice in (0, 1):
            assert whole.outputs(choice) == stream.listener.outputs(choice)


async def test_some_time_after_its_end_a_stream_is_forgotten(slow: RunningAgent) -> None:
    async with streaming(slow, max_tokens=1) as stream:
        await stream.listener.ended()
        late = await Listener.open(slow.wire.bus)
        scheduler = slow.agent._scheduler
        kept = scheduler._requests._ended
        for ended in kept.values():
            ended.ended_at -= 29
        scheduler.tick()
        assert (await late.ask(slow.id, request_id=stream.id)).state == "finished"
        for ended in kept.values():
            ended.ended_at -= 1
        scheduler.tick()
        assert (await late.ask(slow.id, request_id=stream.id)).state == "unknown"


async def test_what_is_not_this_clients_is_unknown(slow: RunningAgent) -> None:
    async with streaming(slow) as stream:
        await stream.listener.has_tokens(1)
        late = await Listener.open(slow.wire.bus)
        assert (await late.ask(slow.id, request_id="nobody's")).state == "unknown"
        stranger = ClientName("bob")
        other = await Listener.open(slow.wire.bus, "_INBOX.bob.listening")
        answer = await other.ask(slow.id, client=stranger, request_id=stream.id)
        assert (answer.state, answer.request_id) == ("unknown", stream.id)
        await stream.listener.has_tokens(4)
        assert late.messages == other.messages == []


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"request_id": "r", "from_index": -1}, "from_index"),
        ({"request_id": "r", "choice": "all"}, "choice"),
        ({"request_id": "r", "why": 1}, "why"),
        ({}, "request_id"),
    ],
)
async def test_a_broken_question_is_told_what_is_wrong(
    slow: RunningAgent, query: dict[str, object], param: str
) -> None:
    late = await Listener.open(slow.wire.bus)
    answer = await late.ask(slow.id, **query)  # type: ignore[arg-type]
    assert answer.state == "unknown"
    assert answer.message is not None and param in answer.message


@pytest.mark.parametrize(
    ("inbox", "strict", "answered"),
    [
        ("t.victim", False, False),
        ("_INBOX.bob.x", False, True),
        ("_INBOX.bob.x", True, False),
        ("_INBOX.local.x", True, True),
    ],
)
async def test_only_an_inbox_that_the_client_may_name_is_answered(
    slow: RunningAgent, monkeypatch: pytest.MonkeyPatch, inbox: str, strict: bool, answered: bool
) -> None:
    monkeypatch.setattr(slow.agent._request_handler, "_strict", strict)
    async with streaming(slow, max_tokens=3) as stream:
        await stream.listener.ended()
        asking = await Listener.open(slow.wire.bus, inbox)
        allowed = await Listener.open(slow.wire.bus, f"_INBOX.{CLIENT}.y")
        await asking.send_question(slow.id, request_id=stream.id)
        await allowed.ask(slow.id, request_id=stream.id)
        await allowed.ended()
        await slow.wire.bus.flush(timeout_s=LIMIT_S)
        assert (bool(asking.states), bool(asking.ends)) == (answered, answered)


# Attaching.


@pytest.mark.parametrize("fields", [{}, {"n": 2, "temperature": 1.0}], ids=["one", "two choices"])
async def test_who_comes_late_gets_everything_from_the_start_and_then_the_rest(
    slow: RunningAgent, fields: dict[str, Any]
) -> None:
    async with streaming(slow, **fields) as stream:
        await stream.listener.has_tokens(5)
        reply, late = await stream.attach()
        assert reply.ok
        await late.has_tokens(15)
        await stream.cancel()
        end = await late.ended()
        assert isinstance(end, DoneMessage) and end == await stream.listener.ended()
        choices = range(fields.get("n", 1))
        for choice in choices:
            assert late.outputs(choice) == stream.listener.outputs(choice)
            assert late.indexes(choice) == list(range(len(late.token_ids(choice))))
        assert sum(len(late.token_ids(n)) for n in choices) == end.usage.completion_tokens


async def test_who_comes_after_the_end_gets_everything(slow: RunningAgent) -> None:
    async with streaming(slow, max_tokens=5) as stream:
        await stream.listener.ended()
        reply, late = await stream.attach()
        assert reply.ok
        assert isinstance(await late.ended(), DoneMessage)
        assert late.outputs() == stream.listener.outputs()


@pytest.mark.parametrize("moment", ["running", "ended"])
async def test_without_streaming_who_comes_late_gets_exactly_the_end(
    slow: RunningAgent, moment: str
) -> None:
    async with streaming(slow, stream=False, max_tokens=10) as stream:
        if moment == "ended":
            await stream.listener.ended()
        reply, late = await stream.attach()
        assert reply.ok
        await late.ended()
        await stream.listener.ended()
        await slow.settle()
        assert late.messages == stream.listener.messages
        (end,) = late.messages
        assert isinstance(end, DoneMessage) and len(late.token_ids()) == 10


@pytest.mark.parametrize(
    "wrong", [{"request_id": RequestId("nobody's")}, {"client": ClientName("bob")}, {"attempt": 1}]
)
async def test_what_is_not_here_cannot_be_attached_to(
    slow: RunningAgent, wrong: dict[str, object]
) -> None:
    async with streaming(slow, max_tokens=2) as stream:
        await stream.listener.ended()
        reply, late = await stream.attach(**wrong)  # type: ignore[arg-type]
        assert (reply.ok, reply.code) == (False, "unknown_request")
        await slow.settle()
        assert late.messages == []
