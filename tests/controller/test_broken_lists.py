"""A list of prompts of which something fails, gets lost, or is not wanted any more."""

import asyncio
import time

import pytest

from shared.bus import Bus
from shared.client import connect
from shared.messages.stream import (
    DoneMessage,
    ErrorDetails,
    StatusMessage,
    Timings,
    Usage,
)
from shared.settings.nats import NatsSettings
from tests.access.roles import as_client
from tests.controller.heard_list import both, dispatched, heard
from tests.controller.inbox import failed
from tests.controller.pair import running_pair
from tests.controller.running import Running, running_controller
from tests.controller.simulated_streams import spoken

pytestmark = pytest.mark.anyio

# Failures.


async def test_a_prompt_that_fails_does_so_alone(cluster: Running) -> None:
    stream, ((one, first), (other, second)) = await both(cluster)
    await one.speak(first, 0, 1, 2)
    await stream.has_tokens(2)
    error = ErrorDetails.of("request_failed", "the engine could not", "prompt")
    await one.fail_openly(first, error)
    await stream.has_ended(0)
    await other.speak(second, 0, 7)
    await stream.has_tokens(3)
    await other.end(second, spoken(1, finish_reason="stop"), usage=Usage(5, 1, 1))
    end = await stream.done()
    assert stream.reasons == {0: "error", 1: "stop"}
    assert stream.tokens == {0: [1, 2], 1: [7]}
    assert stream.errors == {
        0: ErrorDetails("request_failed", "prompt.0: the engine could not", "prompt")
    }
    assert end.usage.completion_tokens == 3
    report = cluster.controller.report()
    assert (report.completed_requests, report.failed_requests) == (1, 0)


async def test_what_is_wrong_with_the_request_ends_all_of_it_and_what_was_done_for_it(
    cluster: Running,
) -> None:
    stream, ((one, first), (other, second)) = await both(cluster)
    error = ErrorDetails.of("invalid_request", "prompt: token id 9 is outside", "prompt")
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
    assert (again.request_id, again.attempt) == (first.request_id, first.attempt + 1)
    assert again.resume is not None and again.resume.token_ids == {0: [1, 2]}
    await other.answer_all(second, 7)
    await other.speak(again, 1, 2)  # the last one that is known comes again
    last = spoken(2, 3, finish_reason="stop")
    await other.end(again, last, usage=Usage(5, 1, 3))
    await stream.done()
    assert stream.tokens == {0: [1, 2, 3], 1: [7]}


GONE = ErrorDetails.of("client_gone", "nobody listened")


async def test_a_prompt_whose_worker_lost_sight_of_us_is_served_again_and_told_once(
    cluster: Running,
) -> None:
    stream, ((one, first), (other, second)) = await both(cluster)
    await other.speak(second, 0, 7)
    await stream.has_tokens(1)
    await one.fail_openly(first, GONE)
    await other.fail_openly(second, GONE)
    again = await dispatched(cluster, one, other, count=2)
    for (worker, dispatch), before in zip(again, (first, second), strict=True):
        assert dispatch.request_id != before.request_id
        assert (dispatch.request.prompt, dispatch.seed) == (before.request.prompt, before.seed)
        assert dispatch.resume is None
        await worker.speak(dispatch, 0, 7)
        last = spoken(1, 8, finish_reason="stop")
        await worker.end(dispatch, last, usage=Usage(5, 1, 2))
    await stream.done()
    assert stream.tokens == {0: [7, 8], 1: [7, 8]}
    assert [chunk.output.index for chunk in stream.chunks if chunk.output.choice == 1] == [0, 1]


async def test_a_prompt_whose_workers_lose_sight_of_us_again_and_again_fails(
    cluster: Running,
) -> None:
    stream, ((one, first), (other, second)) = await both(cluster)
    await other.answer_all(second, 7)
    worker, dispatch = one, first
    for _ in range(3):
        await worker.fail_openly(dispatch, GONE)
        ((worker, dispatch),) = await dispatched(cluster, one, other, count=1)
    await worker.fail_openly(dispatch, GONE)
    await stream.done()
    assert {number: error.code for number, error in stream.errors.items()} == {0: "stream_broken"}


# The same again, and what got lost.


async def test_who_comes_late_hears_it_from_the_start(cluster: Running) -> None:
    stream, ((one, first), (other, second)) = await both(cluster)
    await one.speak(first, 0, 1)
    await one.speak(first, 1, 2)
    await stream.has_tokens(2)
    late = await heard(cluster)
    await late.has_tokens(2)
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


async def test_an_end_of_which_only_the_client_was_told_counts_and_the_leader_finds_out(
    cluster: Running,
) -> None:
    """What a worker tells the leader may get lost."""
    stream, sent = await both(cluster)
    for worker, dispatch in sent:
        last = spoken(0, 1, finish_reason="stop")
        origin = dispatch.request_id, dispatch.attempt, worker.id
        worker.requests.end(dispatch, "finished")
        await worker.send(
            dispatch, DoneMessage(*origin, Usage(5, 1, 1), Timings(1, 2, 3, 4), (last,))
        )
    await stream.done()
    await cluster.until(lambda: len(cluster.machine._store) == 0)


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


async def test_a_controller_that_shuts_down_says_so(nats_settings: NatsSettings, bus: Bus) -> None:
    async with running_controller(nats_settings, bus) as cluster:
        stream, ((one, first), _) = await both(cluster)
        await one.speak(first, 0, 1)
        await stream.has_tokens(1)
    (end,) = [message for message in stream.inbox.rest() if not isinstance(message, StatusMessage)]
    assert failed(end).error.code == "draining"


async def test_a_list_goes_on_at_the_next_leader_when_its_own_dies(
    nats_settings: NatsSettings, bus: Bus
) -> None:
    async with (
        running_pair(nats_settings, bus) as pair,
        connect(as_client(nats_settings.servers[0])) as client,
    ):
        worker = await pair.worker("w1")
        stream = client.stream(prompt=["prompt 0", "prompt 1"], request_id="r", seed=5)
        answer = asyncio.create_task(stream.collect())
        sent = [await worker.next_dispatch(), await worker.next_dispatch()]
        await worker.speak(sent[0], 0, 1)
        await pair.first.settle()
        await pair.first.die()
        assert {(await worker.next_attached()).request_id for _ in sent} == {
            dispatch.request_id for dispatch in sent
        }, "their ids follow from that of the list"
        for dispatch in sent:
            for index in range(2):
                await worker.speak(dispatch, index, index + 1)
            last = spoken(2, finish_reason="stop")
            await worker.end(dispatch, last, usage=Usage(5, 1, 2))
        completion = await asyncio.wait_for(answer, 10)
        assert [choice.token_ids for choice in completion.choices] == [[1, 2], [1, 2]]
        assert completion.choices[0].text == "<1><2>"
        assert worker.unread == (0, 0)
