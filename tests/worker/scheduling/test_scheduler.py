"""Requests on a worker: taken or refused, streamed, and each ended exactly once."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import orjson
import pytest

from shared import subjects
from shared.codec import decode, encode
from shared.ids import ModelId
from shared.messages.base import Priority
from shared.messages.dispatch import DispatchBatch, DispatchReply
from shared.messages.request_events import RequestCompleted
from tests.models import CONTEXT_TOKENS
from tests.processes import RunningNats
from tests.worker.running_agent import LIMIT_S, RunningAgent, as_json, running_agent
from worker.agent.request_handler import DISPATCHES_PER_MESSAGE

pytestmark = pytest.mark.anyio

_LONG = 900


# Bad ends.


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": [10**6]}, "invalid_request", "prompt"),
        ({"prompt": "x" * CONTEXT_TOKENS}, "context_length_exceeded", "prompt"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_what_the_engine_refuses_ends_once_with_the_field_at_fault(
    agent: RunningAgent, fields: dict[str, Any], code: str, param: str, stream: bool
) -> None:
    refused = await agent.start(**fields, stream=stream)
    failed = await refused.failed()
    assert (failed.error.code, failed.error.param) == (code, param)
    assert not failed.error.retryable
    await agent.settle()
    assert len(refused.ends) == 1


async def test_the_timeout_ends_a_running_stream_and_frees_its_place(narrow: RunningAgent) -> None:
    stream = await narrow.start(max_tokens=_LONG, timeout_ms=300)
    failed = await stream.failed()
    assert (failed.error.code, failed.error.retryable) == ("deadline_exceeded", True)
    assert "300" in failed.error.message
    after = await narrow.start()
    await after.done()
    await narrow.settle()
    assert stream.messages[-1] == failed and len(stream.ends) == 1


async def test_the_timeout_counts_from_acceptance_and_holds_in_the_queue_too(
    narrow: RunningAgent,
) -> None:
    blocker = await narrow.start(max_tokens=_LONG)
    stream = await narrow.start(timeout_ms=60_000, elapsed_ms=60_000.0)
    failed = await stream.failed()
    assert failed.error.code == "deadline_exceeded" and "queued" in failed.error.message
    assert stream.token_ids() == []
    await narrow.cancel_all(blocker)


async def test_of_many_dispatches_in_one_message_one_fails_alone(agent: RunningAgent) -> None:
    dispatches = [agent.dispatch(max_tokens=1) for _ in range(DISPATCHES_PER_MESSAGE)]
    dispatches[7] = agent.dispatch(model=ModelId("none"))
    reply = await agent.send(*dispatches)
    asked = [(dispatch.request_id, dispatch.client) for dispatch in dispatches]
    assert [(result.request_id, result.client) for result in reply.results] == asked
    codes = [result.refusal.code if result.refusal else None for result in reply.results]
    assert codes == [None] * 7 + ["model_unavailable"] + [None] * 56
    for dispatch in dispatches[:7] + dispatches[8:]:
        await agent.stream(dispatch).done()


async def test_a_dispatch_that_cannot_be_read_takes_no_others_with_it(agent: RunningAgent) -> None:
    """As one of a newer controller might be."""
    dispatches = [agent.dispatch(attempt=3) for _ in range(3)]
    whole = DispatchBatch(owner=agent.leader, term=agent.term, dispatches=dispatches)
    batch = as_json(encode(whole))
    batch["dispatches"][1]["request"]["max_tokens"] = "some"
    subject = subjects.worker_infer(agent.id)
    answer = await agent.wire.bus.request(subject, orjson.dumps(batch), timeout_s=LIMIT_S)
    first, broken, last = decode(DispatchReply, answer.payload).results
    assert (broken.request_id, broken.attempt) == (dispatches[1].request_id, 3)
    assert broken.refusal is not None and broken.refusal.code == "invalid_request"
    assert (first.refusal, last.refusal) == (None, None)
    for dispatch in (dispatches[0], dispatches[2]):
        await agent.stream(dispatch).done()


# The queue.


async def test_a_full_queue_refuses_and_says_when_to_come_again(narrow: RunningAgent) -> None:
    dispatches = [narrow.dispatch(max_tokens=_LONG) for _ in range(5)]
    reply = await narrow.send(*dispatches)
    refusals = [result.refusal for result in reply.results]
    assert refusals[:4] == [None] * 4
    assert refusals[4] is not None
    assert refusals[4].code == "queue_full"
    assert 100 <= (refusals[4].retry_after_ms or 0) <= 60_000
    report = (await narrow.health()).worker
    assert (report.active_requests, report.queued_requests) == (1, 3)
    assert report.choices == 4
    await narrow.cancel_all(*(narrow.stream(d) for d in reversed(dispatches[:4])))
    await (await narrow.start()).done()


async def test_what_waits_is_served_by_priority_and_first_in_first_out(
    narrow: RunningAgent,
) -> None:
    levels: list[Priority] = ["medium", "low", "high", "medium"]
    dispatches = [narrow.dispatch(priority=level, max_tokens=30) for level in levels]
    reply = await narrow.send(*dispatches)
    assert all(result.refusal is None for result in reply.results)
    streams = [narrow.stream(dispatch) for dispatch in dispatches]
    for stream in streams:
        await stream.done()
    finished = [e for e in narrow.wire.events() if isinstance(e, RequestCompleted)]
    served = [event.request_id for event in finished[-4:]]
    assert served == [dispatches[number].request_id for number in (0, 2, 3, 1)]


async def test_a_waiting_stream_hears_again_and_again_that_it_is_queued(
    narrow: RunningAgent,
) -> None:
    blockers = [await narrow.start(max_tokens=_LONG, n=4) for _ in range(2)]
    waiting = await narrow.start(priority="low")
    await waiting.until(lambda stream: stream.statuses.count("queued") >= 2)
    assert waiting.token_ids() == []
    await narrow.cancel_all(*reversed(blockers))
    await waiting.done()


async def test_a_running_request_without_streaming_hears_nothing_before_its_end(
    narrow: RunningAgent,
) -> None:
    blocker = await narrow.start(max_tokens=_LONG)
    silent = await narrow.start(stream=False)
    waiting = await narrow.start()
    await waiting.until(lambda stream: "queued" in stream.statuses)
    await narrow.cancel_all(blocker)
    await silent.done()
    await narrow.settle()
    assert len(silent.messages) == 1


# Cancelling and repeating.


async def test_a_cancelled_stream_ends_with_that_reason_and_what_it_had(
    agent: RunningAgent,
) -> None:
    stream = await agent.start(max_tokens=_LONG)
    await stream.started()
    assert (await agent.cancel(stream)).ok
    done = await stream.done()
    assert done.outputs[-1].finish_reason == "cancelled"
    assert done.usage.completion_tokens == len(stream.token_ids()) < _LONG
    assert not (await agent.cancel(stream)).ok, "it is gone"


async def test_cancelled_in_the_queue_a_stream_ends_at_once(narrow: RunningAgent) -> None:
    blocker = await narrow.start(max_tokens=_LONG)
    waiting = await narrow.start(n=2)
    assert (await narrow.cancel(waiting)).ok
    done = await waiting.done()
    assert [output.finish_reason for output in waiting.outputs(0)] == ["cancelled"]
    assert [output.finish_reason for output in waiting.outputs(1)] == ["cancelled"]
    assert done.usage.completion_tokens == 0
    assert blocker.ends == []
    await narrow.cancel_all(blocker)


@pytest.mark.parametrize("queued", [False, True])
async def test_silently_cancelled_a_stream_hears_nothing_more(
    narrow: RunningAgent, queued: bool
) -> None:
    first = await narrow.start(max_tokens=_LONG)
    await first.started()
    dropped = await narrow.start(max_tokens=_LONG) if queued else first
    assert (await narrow.cancel(dropped, silent=True)).ok
    if queued:
        await narrow.cancel_all(first)
    await (await narrow.start()).done()  # all that the engine still had to say is said
    await narrow.settle()
    assert dropped.ends == []


async def test_a_cancel_for_another_attempt_changes_nothing(agent: RunningAgent) -> None:
    stream = await agent.start(max_tokens=200, attempt=1)
    assert not (await agent.cancel(stream, attempt=0)).ok
    done = await stream.done()
    assert done.outputs[-1].finish_reason == "length"


async def test_a_dispatch_that_comes_twice_is_acked_twice_and_served_once(
    agent: RunningAgent,
) -> None:
    dispatch = agent.dispatch(max_tokens=40)
    # In one message, since one that comes after the first token gets all of it again.
    results = (await agent.send(dispatch, dispatch)).results
    assert [result.refusal for result in results] == [None, None]
    stream = agent.stream(dispatch)
    await stream.done()
    await (await agent.start()).done()
    await agent.settle()
    assert [output.index for output in stream.outputs()] == list(range(40))
    assert len(stream.ends) == 1


async def test_another_body_under_an_id_that_runs_is_no_part_of_its_stream(
    agent: RunningAgent,
) -> None:
    """As it comes after a change of leaders."""
    first = await agent.start(max_tokens=_LONG)
    await first.started()
    other = agent.dispatch(request_id=first.dispatch.request_id, prompt="Another", max_tokens=3)
    reply = await agent.send(other)
    await agent.cancel_all(first)
    refusal = reply.results[0].refusal
    assert refusal is not None and refusal.code == "request_id_conflict"
    assert agent.stream(other).token_ids() == []


async def test_a_lower_attempt_than_the_one_that_runs_is_refused(agent: RunningAgent) -> None:
    """As one that was long on its way: a later one began meanwhile."""
    first = await agent.start(max_tokens=_LONG, attempt=2)
    await first.started()
    (result,) = (await agent.send(first.dispatch.model_copy(update={"attempt": 1}))).results
    assert result.refusal is not None and result.refusal.code == "stale_term"
    assert result.attempt == 1
    assert {event.attempt for event in first.events()} == {2} and not first.ends
    await agent.cancel_all(first)


async def test_a_higher_attempt_takes_the_place_of_a_lower_one(agent: RunningAgent) -> None:
    first = await agent.start(max_tokens=300)
    await first.started()
    again = first.dispatch.model_copy(update={"attempt": 1, "inboxes": [agent.wire.new_inbox()]})
    await agent.send(again)
    done = await agent.stream(again).done()
    assert done.attempt == 1 and done.usage.completion_tokens == 300
    assert first.ends == []


# Models.


async def test_a_model_folder_that_vanished_fails_when_a_restarted_engine_shall_load_it(
    nats_server: RunningNats, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "vanishing"
    shutil.copytree(tiny_model, folder)
    quick = {"restart_delay_ms": 0}
    async with running_agent(nats_server.url, {"tiny": folder}, engines=quick) as agent:
        shutil.rmtree(folder)
        (engine,) = (await agent.health()).worker.engines
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        await agent.until_reported(lambda report: report.models[0].state == "failed")
        (model,) = (await agent.health()).worker.models
        assert str(folder) in (model.error or "")
