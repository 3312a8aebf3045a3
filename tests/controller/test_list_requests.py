"""A list of prompts on a running controller: each prompt is served on its own, and the client
hears one stream."""

import asyncio
import time
from typing import Any

import pytest

from shared.bus import Bus
from shared.client import connect
from shared.ids import RequestId
from shared.messages.dispatch import Dispatch, choice_seed
from shared.messages.stream import (
    KEEP_ALIVE_S,
    ChoiceOutput,
    Chunk,
    Done,
    Status,
    StreamError,
    Timings,
    Usage,
)
from shared.settings.tree import Nats
from tests.access.roles import as_client
from tests.controller.heard_list import HeardList
from tests.controller.pair import FIRST, SECOND, ids_owned_by, running_pair
from tests.controller.running import (
    CONTROLLER,
    Inbox,
    Running,
    accepted,
    failed,
    running_controller,
    running_state,
)
from tests.controller.simulated_worker import SimulatedWorker, refuse, spoken

pytestmark = pytest.mark.anyio

ID = RequestId("r")


async def ask(cluster: Running, prompts: int = 2, **fields: Any) -> Inbox:
    """Ask for the one list of these tests."""
    texts = [f"prompt {number}" for number in range(prompts)]
    return await cluster.ask(request_id="r", seed=5, prompt=texts, **fields)


async def heard(cluster: Running, prompts: int = 2, **fields: Any) -> HeardList:
    inbox = await ask(cluster, prompts, **fields)
    return HeardList(inbox, choices=prompts * fields.get("n", 1))


Sent = list[tuple[SimulatedWorker, Dispatch]]


async def dispatched(cluster: Running, *workers: SimulatedWorker, count: int) -> Sent:
    """The next dispatches of all workers together, in the order of their prompts."""
    await cluster.until(lambda: sum(worker.unread[0] for worker in workers) >= count)
    found = [
        (worker, await worker.next_dispatch())
        for worker in workers
        for _ in range(worker.unread[0])
    ]
    return sorted(found, key=lambda one: str(one[1].request.prompt))


async def both(
    cluster: Running, **fields: Any
) -> tuple[HeardList, list[tuple[SimulatedWorker, Dispatch]]]:
    """The list with its two prompts at workers."""
    workers = [await cluster.worker(f"w{number}") for number in range(2)]
    stream = await heard(cluster, **fields)
    return stream, await dispatched(cluster, *workers, count=2)


# Where prompts go.


async def test_each_prompt_goes_to_a_worker_of_its_own(cluster: Running) -> None:
    workers = [await cluster.worker(f"w{number}") for number in range(4)]
    inbox = await ask(cluster, 4, n=2, session_id="s", max_tokens=7)
    assert accepted(await inbox.next()).seed == 5
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
    assert stream.messages[0] == Status(end.request_id, 0, None, "accepted", seed=5)
    assert [chunk.usage is not None for chunk in stream.chunks][1:].count(True) == 0


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
    for _ in range(2):
        assert await stream.inbox.next(3 * KEEP_ALIVE_S) == Status(ID, 0, None, "running")


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
            await worker.send(dispatch, Chunk(dispatch.request_id, 0, worker.id, output))
        last = spoken(2, finish_reason="stop")
        await worker.end(dispatch, last, usage=Usage(5, 1, 2))
    assert (await stream.failed()).error.code == "answer_too_large"


# Failures.


async def test_a_prompt_that_fails_does_so_alone(cluster: Running) -> None:
    stream, ((one, first), (other, second)) = await both(cluster)
    await one.speak(first, 0, 1, 2)
    await stream.has_tokens(2)
    error = StreamError.of("request_failed", "the engine could not", "prompt")
    await one.fail_openly(first, error)
    await stream.has_ended(0)
    await other.speak(second, 0, 7)
    await stream.has_tokens(3)
    await other.end(second, spoken(1, finish_reason="stop"), usage=Usage(5, 1, 1))
    end = await stream.done()
    assert stream.reasons == {0: "error", 1: "stop"}
    assert stream.tokens == {0: [1, 2], 1: [7]}
    assert stream.errors == {
        0: StreamError("request_failed", "prompt.0: the engine could not", "prompt")
    }
    assert end.usage.completion_tokens == 3
    report = cluster.controller.report()
    assert (report.completed_requests, report.failed_requests) == (1, 0)


async def test_what_is_wrong_with_the_request_ends_all_of_it_and_what_was_done_for_it(
    cluster: Running,
) -> None:
    stream, ((one, first), (other, second)) = await both(cluster)
    error = StreamError.of("invalid_request", "prompt: token id 9 is outside", "prompt")
    await other.fail_openly(second, error)
    end = await stream.failed()
    assert (end.error.code, end.error.param) == ("invalid_request", "prompt")
    assert end.error.message == "prompt.1: token id 9 is outside"
    cancel = await one.next_cancel()
    assert (cancel.request_id, cancel.silent) == (first.request_id, True)
    await cluster.until(lambda: cluster.controller.report().active_requests == 0)


async def test_a_prompt_whose_worker_dies_later_goes_on_at_another(cluster: Running) -> None:
    stream, ((one, first), (other, second)) = await both(cluster)
    await one.speak(first, 0, 1, 2)
    await stream.has_tokens(2)
    await cluster.settle()
    await one.say("left")
    again = await other.next_dispatch()
    assert (again.request_id, again.attempt) == (first.request_id, 1)
    assert again.resume is not None and again.resume.token_ids == {0: [1, 2]}
    await other.answer_all(second, 7)
    await other.speak(again, 1, 2)  # the last one that is known comes again
    last = spoken(2, 3, finish_reason="stop")
    await other.end(again, last, usage=Usage(5, 1, 3))
    await stream.done()
    assert stream.tokens == {0: [1, 2, 3], 1: [7]}


async def test_a_prompt_whose_worker_lost_sight_of_us_is_asked_again_unless_it_has_begun(
    cluster: Running,
) -> None:
    stream, ((one, first), (other, second)) = await both(cluster)
    await other.speak(second, 0, 7)
    await stream.has_tokens(1)
    gone = StreamError.of("client_gone", "nobody listened")
    await one.fail_openly(first, gone)
    await other.fail_openly(second, gone)
    await stream.has_ended(1)
    assert stream.errors[1].code == "stream_broken"
    ((worker, again),) = await dispatched(cluster, one, other, count=1)
    assert again.request_id != first.request_id
    assert (again.request.prompt, again.seed) == ("prompt 0", first.seed)
    await worker.answer_all(again, 1)
    await stream.done()
    assert stream.tokens == {0: [1], 1: [7]}


# Room.


async def test_a_list_for_which_there_is_no_room_at_all_is_refused(cluster: Running) -> None:
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
    subject, query = "mlx.request.local.cancel", b'{"request_id": "%s"}'
    payload = query.replace(b"%s", first.request_id.encode())
    assert await cluster.bus.request_many(subject, payload, wait_s=0.2) == []
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
    error = StreamError.of("deadline_exceeded", "timeout_ms of 600 passed while running")
    await worker.fail_openly(first, error)
    assert (await stream.failed()).error.code == "deadline_exceeded"
    assert cluster.controller.report().failed_requests == 1


# The same again, and what got lost.


async def test_who_comes_late_hears_it_from_the_start(cluster: Running) -> None:
    stream, ((one, first), (other, second)) = await both(cluster)
    await one.speak(first, 0, 1)
    await one.speak(first, 1, 2)
    await stream.has_tokens(2)
    late = await heard(cluster)
    await late.has_tokens(2)
    assert accepted(late.messages[0]).seed == 5
    await one.speak(first, 2, 3)
    for each in (stream, late):
        await each.has_tokens(3)
    await one.end(first, spoken(3, finish_reason="stop"), usage=Usage(5, 1, 3))
    await other.answer_all(second, 7)
    ends = [await each.done() for each in (stream, late)]
    assert ends[0] == ends[1]
    after = await heard(cluster)
    assert await after.done() == ends[0]
    assert after.tokens == late.tokens == stream.tokens == {0: [1, 2, 3], 1: [7]}
    assert (one.unread, other.unread) == ((0, 0), (0, 0))
    assert cluster.controller.report().accepted_requests == 1


async def test_a_gap_is_repaired_by_the_worker_before_the_client_hears_of_it(
    cluster: Running,
) -> None:
    stream, ((one, first), (other, second)) = await both(cluster)
    await cluster.settle()
    await one.speak(first, 0, 1)
    await one.speak(first, 2, 3)  # what was between them got lost
    order = await one.next_attached()
    assert (order.request_id, order.inbox) == (first.request_id, first.inboxes[0])
    for index in range(3):
        await one.speak(first, index, index + 1)
    await one.end(first, spoken(3, finish_reason="stop"), usage=Usage(5, 1, 3))
    await other.answer_all(second, 7)
    await stream.done()
    assert stream.tokens == {0: [1, 2, 3], 1: [7]}
    indexes = [chunk.output.index for chunk in stream.chunks if chunk.output.choice == 0]
    assert indexes == [0, 1, 2, 3]


async def test_an_end_that_got_lost_is_asked_for(cluster: Running) -> None:
    stream, ((one, first), (other, second)) = await both(cluster)
    await other.answer_all(second, 7)
    await one.speak(first, 0, 1)
    await one.finish_unheard(first)
    await one.next_attached()
    last = spoken(1, finish_reason="stop")
    await one.end(first, last, usage=Usage(5, 1, 1))
    await stream.done()
    assert stream.tokens == {0: [1], 1: [7]}


async def test_an_end_counts_even_where_only_the_client_was_told_of_it(cluster: Running) -> None:
    """What a worker tells the owner beside it may get lost."""
    stream, sent = await both(cluster)
    for worker, dispatch in sent:
        last = spoken(0, 1, finish_reason="stop")
        origin = dispatch.request_id, dispatch.attempt, worker.id
        await worker.send(dispatch, Done(*origin, Usage(5, 1, 1), Timings(1, 2, 3, 4), (last,)))
    await stream.done()
    for _, dispatch in sent:
        assert (await cluster.query("status", dispatch.request_id)).state == "finished"


async def test_what_an_attempt_that_was_given_up_still_says_is_not_passed_on(
    cluster: Running,
) -> None:
    stream, ((one, first), (other, second)) = await both(cluster)
    await cluster.settle()
    await one.say("left")
    again = await other.next_dispatch()
    assert again.attempt == first.attempt + 1
    assert (again.request_id, again.seed) == (first.request_id, first.seed)
    await one.speak(first, 0, 99)
    await one.answer_all(first, 98)
    await other.answer_all(again, 1)
    await other.answer_all(second, 7)
    await stream.done()
    assert stream.tokens == {0: [1], 1: [7]}


# Who listens.


async def test_a_list_that_nobody_listens_to_any_more_ends(cluster: Running) -> None:
    stream, ((one, first), (other, second)) = await both(cluster)
    await one.speak(first, 0, 1)
    await stream.has_tokens(1)
    await stream.inbox.leave()
    began = time.monotonic()
    assert (await one.next_cancel()).request_id == first.request_id
    assert (await other.next_cancel()).request_id == second.request_id
    assert time.monotonic() - began > 0.5
    assert (await cluster.query("status", "r")).state == "failed"
    assert cluster.controller.report().active_requests == 0


async def test_who_waits_for_a_whole_answer_is_never_looked_after(cluster: Running) -> None:
    stream, ((one, first), _) = await both(cluster, stream=False)
    await stream.inbox.leave()
    for index in range(10):
        await one.speak(first, index, 1)
        await asyncio.sleep(0.2)
    assert one.unread[1] == 0
    assert (await cluster.query("status", "r")).state == "running"


# Ends of the controller's own.


async def test_a_controller_that_shuts_down_says_so(nats_settings: Nats, bus: Bus) -> None:
    async with running_controller(nats_settings, bus) as cluster:
        stream, ((one, first), _) = await both(cluster)
        await one.speak(first, 0, 1)
        await stream.has_tokens(1)
    (end,) = [message for message in stream.inbox.rest() if not isinstance(message, Status)]
    assert failed(end).error.code == "draining"


async def test_a_list_goes_on_at_another_controller_when_its_own_dies(
    nats_settings: Nats, bus: Bus
) -> None:
    async with (
        running_pair(nats_settings, bus) as pair,
        connect(as_client(nats_settings.servers[0])) as client,
    ):
        worker = await pair.worker("w1")
        (request_id,) = ids_owned_by(FIRST, SECOND, count=1)
        texts = ["prompt 0", "prompt 1"]
        stream = client.stream(prompt=texts, request_id=request_id, seed=5)
        answer = asyncio.create_task(stream.collect())
        first, _ = await worker.next_dispatch(), await worker.next_dispatch()
        await worker.speak(first, FIRST, 0, 1)
        await pair.settle()
        await pair.controllers[0].controller._bus.close()
        for dispatch in [await worker.next_dispatch(), await worker.next_dispatch()]:
            for index in range(2):
                await worker.speak(dispatch, SECOND, index, index + 1)
            last = spoken(2, finish_reason="stop")
            await worker.end(dispatch, SECOND, last, usage=Usage(5, 1, 2))
        completion = await asyncio.wait_for(answer, 10)
        assert [choice.token_ids for choice in completion.choices] == [[1, 2], [1, 2]]
        assert completion.choices[0].text == "<1><2>"
