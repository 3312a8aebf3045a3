"""A list of prompts on a running controller: each prompt is served on its own, and the client
hears one stream."""

import time
from typing import Any

import pytest

from shared.ids import RequestId
from shared.messages.dispatch import Dispatch, choice_seed
from shared.messages.stream import (
    KEEP_ALIVE_S,
    ChoiceOutput,
    ChunkMessage,
    ErrorDetails,
    StatusMessage,
    Usage,
)
from tests.controller.heard_list import ask, both, dispatched, heard
from tests.controller.running import Running, running_state
from tests.controller.simulated_streams import spoken
from tests.controller.simulated_worker import refuse

pytestmark = pytest.mark.anyio

ID = RequestId("r")


# Where prompts go.


async def test_each_prompt_goes_to_a_worker_of_its_own(cluster: Running) -> None:
    workers = [await cluster.worker(f"w{number}") for number in range(4)]
    inbox = await ask(cluster, 4, n=2, session_id="s", max_tokens=7)
    sent = await dispatched(cluster, *workers, count=4)
    assert len({worker.id for worker, _ in sent}) == 4
    for number, (_, dispatch) in enumerate(sent):
        assert dispatch.request.prompt == f"prompt {number}"
        assert dispatch.seed == choice_seed(5, 2 * number)
        assert (dispatch.request.n, dispatch.request.max_tokens) == (2, 7)
        assert dispatch.request.session_id is None
        assert inbox.subject not in dispatch.inboxes
    assert len({dispatch.request_id for _, dispatch in sent} | {"r"}) == 5


async def test_a_list_of_one_prompt_goes_as_it_came(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.begin(request_id="r", prompt=["x"])
    dispatch = await worker.next_dispatch()
    assert (dispatch.request_id, dispatch.request.prompt) == ("r", ["x"])
    assert dispatch.inboxes == [inbox.subject]


async def test_no_more_prompts_are_with_workers_than_their_batches_have_places(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1", max_batch_size=3)
    await ask(cluster, 5)
    first, second, third = [await worker.next_dispatch() for _ in range(3)]
    await cluster.settle()
    assert worker.unread[0] == 0
    await worker.answer_all(second, 1)
    fourth = await worker.next_dispatch()
    assert fourth.request.prompt == "prompt 3"
    await cluster.settle()
    assert worker.unread[0] == 0
    for dispatch in (first, third, fourth):
        await worker.answer_all(dispatch, 1)
    assert (await worker.next_dispatch()).request.prompt == "prompt 4"


# What the client hears.


async def test_chunks_of_all_workers_come_as_one_stream(cluster: Running) -> None:
    stream, ((one, first), (other, second)) = await both(cluster, n=2)
    for index in range(3):
        for choice in range(2):
            await one.speak(first, index, 10 * choice + index, choice=choice)
            await other.speak(second, index, 20 + 10 * choice + index, choice=choice)
    await stream.has_tokens(12)
    for worker, dispatch in ((one, first), (other, second)):
        await worker.speak(dispatch, 3, choice=1, finish_reason="length")
        last = spoken(3, finish_reason="stop")
        await worker.end(dispatch, last, usage=Usage(5, 1, 6))
    end = await stream.done()
    expected = {choice: [10 * choice + index for index in range(3)] for choice in range(4)}
    assert stream.tokens == expected
    assert stream.reasons == {0: "stop", 1: "length", 2: "stop", 3: "length"}
    assert (end.usage, end.outputs) == (Usage(10, 2, 12), ())
    usages = [chunk.usage for chunk in stream.chunks if chunk.usage is not None]
    assert usages == [Usage(5, 1, 0)], "that of the prompt that is known first, once"


async def test_a_list_is_one_request_for_who_asks_and_who_counts(cluster: Running) -> None:
    stream, ((one, first), (other, second)) = await both(cluster)
    await one.speak(first, 0, 1, 2)
    await stream.has_tokens(2)
    state = await cluster.query("status", "r")
    assert (state.state, state.worker, state.tokens) == ("running", None, 2)
    report = cluster.controller.report()
    assert (report.active_requests, report.accepted_requests) == (1, 1)
    await one.end(first, spoken(2, finish_reason="stop"), usage=Usage(5, 1, 2))
    await other.answer_all(second, 9)
    await stream.done()
    assert (await cluster.query("status", "r")).state == "finished"
    report = cluster.controller.report()
    assert (report.active_requests, report.completed_requests, report.failed_requests) == (0, 1, 0)


async def test_a_stream_without_tokens_says_again_and_again_how_it_stands(cluster: Running) -> None:
    assert KEEP_ALIVE_S < 2, "docs/wire.md promises that"
    stream, ((one, first), _) = await both(cluster)
    await one.speak(first, 0, 1)
    await stream.has_tokens(1)
    running = StatusMessage(ID, cluster.first_attempt - 1, None, "running")
    for _ in range(2):
        assert await stream.inbox.next(3 * KEEP_ALIVE_S) == running


async def test_without_streaming_one_message_has_all_choices_whole(cluster: Running) -> None:
    stream, ((one, first), (other, second)) = await both(cluster, stream=False, n=2)
    assert first.request.stream
    await other.answer_all(second, 7, 8)
    await one.answer_all(first, 5)
    end = await stream.done()
    assert [output.choice for output in end.outputs] == [0, 1, 2, 3]
    assert [output.token_ids for output in end.outputs] == [[5], [5], [7, 8], [7, 8]]
    assert [output.text for output in end.outputs] == ["<5>", "<5>", "<7><8>", "<7><8>"]
    assert len(stream.messages) == 1
    late = await ask(cluster, stream=False, n=2)
    assert await late.next() == end


async def test_an_answer_that_fits_into_no_message_is_an_error(cluster: Running) -> None:
    stream, ((one, first), (other, second)) = await both(cluster, stream=False)
    size = cluster.bus.max_payload // 3
    for worker, dispatch in ((one, first), (other, second)):
        for index in range(2):
            output = ChoiceOutput(0, index, [1], "x" * size)
            await worker.send(
                dispatch, ChunkMessage(dispatch.request_id, dispatch.attempt, worker.id, output)
            )
        last = spoken(2, finish_reason="stop")
        await worker.end(dispatch, last, usage=Usage(5, 1, 2))
    assert (await stream.failed()).error.code == "answer_too_large"


# Room.


async def test_a_list_for_which_there_is_no_room_at_all_is_rejected(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    worker.answer = refuse("queue_full", retry_after_ms=700)
    stream = await heard(cluster, 20)
    end = await stream.failed()
    assert (end.error.code, end.error.retry_after_ms) == ("queue_full", 700)
    await cluster.until(lambda: cluster.controller.report().active_requests == 0)


async def test_prompts_that_find_no_room_wait_where_others_did(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    taken: list[Dispatch] = []

    def one_only(dispatch: Dispatch) -> Any:
        taken.append(dispatch)
        return "accept" if len(taken) == 1 else refuse("queue_full", 60_000)(dispatch)

    worker.answer = one_only
    stream = await heard(cluster, 3)
    first = await worker.next_dispatch()
    for _ in range(2):
        await worker.next_dispatch()
    await cluster.settle()
    worker.answer = lambda dispatch: "accept"
    await worker.answer_all(first, 1)
    for number in (1, 2):
        dispatch = await worker.next_dispatch()
        assert dispatch.request.prompt == f"prompt {number}"
        await worker.answer_all(dispatch, 1)
    await stream.done()
    assert set(stream.reasons.values()) == {"stop"}


async def test_a_prompt_that_found_no_room_is_tried_again_when_it_was_told_to(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    worker.answer = lambda dispatch: (
        "accept" if dispatch.request.prompt == "prompt 0" else refuse("queue_full", 300)(dispatch)
    )
    await ask(cluster)
    await worker.next_dispatch()
    await worker.next_dispatch()
    refused_at = time.monotonic()
    again = await worker.next_dispatch()
    assert again.request.prompt == "prompt 1"
    assert time.monotonic() - refused_at >= 0.25


# Cancels and deadlines.


async def test_a_cancel_ends_all_prompts_and_keeps_what_is_there(cluster: Running) -> None:
    worker = await cluster.worker("w1", max_batch_size=2)
    stream = await heard(cluster, 4)
    first, second = await worker.next_dispatch(), await worker.next_dispatch()
    await worker.answer_all(first, 1)
    third = await worker.next_dispatch()
    await worker.speak(second, 0, 5)
    await stream.has_tokens(2)
    await cluster.query("cancel", "r")
    cancels = {(await worker.next_cancel()).request_id for _ in range(2)}
    assert cancels == {second.request_id, third.request_id}
    for dispatch, tokens in ((second, 1), (third, 0)):
        last = spoken(tokens, finish_reason="cancelled")
        await worker.end(dispatch, last, usage=Usage(5, 1, tokens))
    end = await stream.done()
    assert stream.reasons == {0: "stop", 1: "cancelled", 2: "cancelled", 3: "cancelled"}
    assert (stream.tokens[1], end.usage.completion_tokens) == ([5], 2)
    await cluster.settle()
    assert worker.unread[0] == 0


async def test_a_list_that_waits_for_its_session_is_cancelled_as_any_request(
    cluster: Running,
) -> None:
    worker = await cluster.worker("w1")
    await cluster.ask(request_id="before", prompt="x", session_id="s")
    await worker.next_dispatch()
    stream = await heard(cluster, session_id="s")
    await cluster.settle()
    assert worker.unread[0] == 0, "the turn before it is not over"
    await cluster.query("cancel", "r")
    assert len((await stream.done()).outputs) == 2


async def test_one_prompt_alone_cannot_be_cancelled_but_workers_can_ask_for_it(
    cluster: Running,
) -> None:
    _, ((one, first), _) = await both(cluster)
    assert await running_state(cluster, first.request_id) == "running"
    assert (await cluster.query("status", first.request_id)).worker == one.id
    assert (await cluster.query("cancel", first.request_id)).state == "running"
    await cluster.settle()
    assert one.unread[1] == 0


async def test_prompts_that_never_went_end_at_the_deadline(cluster: Running) -> None:
    worker = await cluster.worker("w1", max_batch_size=1)
    stream = await heard(cluster, 3, timeout_ms=600)
    first = await worker.next_dispatch()
    assert 0 < first.elapsed_ms < 600
    await worker.speak(first, 0, 1)
    await stream.has_ended(2)
    assert stream.reasons == {1: "error", 2: "error"}
    assert {error.code for error in stream.errors.values()} == {"deadline_exceeded"}
    error = ErrorDetails.of("deadline_exceeded", "timeout_ms of 600 passed while running")
    await worker.fail_openly(first, error)
    assert (await stream.failed()).error.code == "deadline_exceeded"
    assert cluster.controller.report().failed_requests == 1
