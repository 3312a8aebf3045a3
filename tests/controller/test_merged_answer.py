"""The answers to several prompts as one stream, by value."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.merged_answer import MergedAnswer
from controller.owned_request import OwnedRequest
from shared.client.assembler import Assembler
from shared.ids import RequestId
from shared.messages.stream import (
    ChoiceOutput,
    Chunk,
    Done,
    Failed,
    StreamError,
    StreamMessage,
    Timings,
    Usage,
    decode,
    encode,
)
from tests.controller.simulated_worker import spoken
from tests.controller.values import owned

USAGE = Usage(5, 2, 0)
SOON, LATE = Timings(1, 2, 3, 90), Timings(50, 10, 60, 20)
LOST = StreamError.of("worker_lost", "w1 is gone")


def asked(prompts: int = 2, **fields: Any) -> OwnedRequest:
    return owned(prompt=[f"prompt {number}" for number in range(prompts)], **fields)


def merged(prompts: int = 2, **fields: Any) -> MergedAnswer:
    return MergedAnswer(asked(prompts, **fields))


def done(answer: MergedAnswer) -> Done:
    end = answer.end()
    assert isinstance(end, Done)
    return end


def finish(answer: MergedAnswer, prompt: int, *token_ids: int, timings: Timings = SOON) -> None:
    """The only choice of a prompt, whole."""
    answer.advance(prompt, spoken(0, *token_ids, finish_reason="stop"), USAGE)
    answer.done(prompt, replace(USAGE, completion_tokens=len(token_ids)), timings)


def test_a_chunk_is_passed_on_as_it_came_but_from_nobody_and_under_the_lists_own_id() -> None:
    answer = merged()
    logprobs = [{"token_id": 7, "token": "a", "logprob": -0.5}]
    output = spoken(3, 7, logprobs=logprobs, finish_reason="stop", stop_sequence="b")
    chunk = answer.advance(1, output, USAGE)
    assert (chunk.request_id, chunk.attempt, chunk.worker) == ("r", 0, None)
    assert replace(chunk.output, choice=0) == output


def test_only_the_first_chunk_says_what_its_prompt_has() -> None:
    answer = merged()
    chunks = [answer.advance(prompt, spoken(0, 7), USAGE) for prompt in (1, 0, 1)]
    assert [chunk.usage for chunk in chunks] == [USAGE, None, None]


def test_the_end_has_the_times_of_the_first_token_and_all_that_came_after() -> None:
    request = asked()
    request.accepted_at -= 0.2
    answer = MergedAnswer(request)
    finish(answer, 0, 1, timings=LATE)
    finish(answer, 1, 1, timings=SOON)
    timings = done(answer).timings
    assert (timings.queue_ms, timings.prefill_ms, timings.ttft_ms) == (1, 2, 3)
    assert 197 <= timings.decode_ms < 5000


def test_a_list_is_over_when_each_prompt_is() -> None:
    answer = merged(3)
    finish(answer, 2, 1)
    answer.fail(0, LOST)
    assert not answer.over
    answer.cancel(1)
    assert answer.over


def test_a_prompt_that_fails_ends_its_own_choices_and_no_others() -> None:
    answer = merged(n=2)
    answer.advance(1, spoken(0, 1, choice=0, finish_reason="stop"))
    answer.advance(1, spoken(0, 1, 2, choice=1))
    (last,) = answer.fail(1, LOST)
    assert last.output == ChoiceOutput(
        3, 2, [], "", finish_reason="error",
        error=StreamError.of("worker_lost", "prompt.1: w1 is gone"),
    )  # fmt: skip
    assert not answer.over


def test_what_came_before_a_failure_is_counted() -> None:
    answer = merged()
    answer.advance(0, spoken(0, 1, 2), USAGE)
    answer.fail(0, LOST)
    finish(answer, 1, 1)
    assert done(answer).usage == Usage(10, 4, 3)


def test_where_every_prompt_failed_the_list_did_for_the_reason_of_the_first() -> None:
    answer = merged()
    answer.fail(1, StreamError.of("queue_full", "no room", retry_after_ms=5))
    answer.fail(0, LOST)
    end = answer.end()
    assert end == Failed(
        RequestId("r"), 0, None, StreamError.of("worker_lost", "prompt.0: w1 is gone")
    )


def test_cancelled_prompts_are_no_failure() -> None:
    answer = merged()
    answer.fail(0, LOST)
    (last,) = answer.cancel(1)
    assert last.output == ChoiceOutput(1, 0, [], "", finish_reason="cancelled")
    assert done(answer).usage == Usage(0, 0, 0)


def test_without_streaming_the_end_has_all_choices_whole_and_in_order() -> None:
    answer = merged(3, stream=False)
    answer.advance(2, spoken(0, 1))
    answer.advance(2, spoken(1, 2, finish_reason="stop"))
    answer.done(2, USAGE, SOON)
    finish(answer, 0, 5)
    answer.fail(1, LOST)
    outputs = done(answer).outputs
    assert [output.token_ids for output in outputs] == [[5], [], [1, 2]]
    assert [output.finish_reason for output in outputs] == ["stop", "error", "stop"]
    assert outputs[1].error == StreamError.of("worker_lost", "prompt.1: w1 is gone")
    assert answer.replay() == []


def test_how_the_first_prompts_worker_was_chosen_is_told_at_the_end() -> None:
    answer = merged()
    answer.done(1, USAGE, SOON, {"worker": "w2"})
    answer.fail(0, LOST, {"worker": "w1"})
    assert done(answer).route == {"worker": "w1"}


def test_who_comes_late_hears_it_all() -> None:
    answer = merged()
    chunks = [answer.advance(prompt, spoken(index, 7)) for index in (0, 1) for prompt in (0, 1)]
    chunks += answer.fail(0, LOST)
    assert sorted(map(repr, answer.replay())) == sorted(map(repr, chunks))


_STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=30)
_ENDS = st.lists(st.sampled_from(["done", "failed", "cancelled"]), min_size=2, max_size=2)


@pytest.mark.parametrize("stream", [True, False])
@given(steps=_STEPS, ends=_ENDS)
def test_a_client_can_put_together_whatever_comes(
    stream: bool, steps: list[tuple[int, int]], ends: list[str]
) -> None:
    answer = merged(n=2, stream=stream)
    expected: list[list[int]] = [[], [], [], []]
    said: list[StreamMessage] = []
    for number, count in steps:
        tokens = list(range(count))
        output = spoken(len(expected[number]), *tokens, choice=number % 2)
        said.append(answer.advance(number // 2, output, USAGE))
        expected[number] += tokens
    for prompt, end in enumerate(ends):
        numbers = (2 * prompt, 2 * prompt + 1)
        if end == "done":
            for number in numbers:
                output = spoken(len(expected[number]), choice=number % 2, finish_reason="stop")
                said.append(answer.advance(prompt, output, USAGE))
            total = sum(len(expected[number]) for number in numbers)
            answer.done(prompt, replace(USAGE, completion_tokens=total), SOON)
        else:
            said += answer.fail(prompt, LOST) if end == "failed" else answer.cancel(prompt)
    assert answer.over and answer.tokens == sum(map(len, expected))
    last = answer.end()
    if ends == ["failed", "failed"]:
        assert isinstance(last, Failed)
        return
    heard: dict[int, list[int]] = {number: [] for number in range(4)}
    client = Assembler(RequestId("r"), choices=4)
    for message in [*(said if stream else ()), last]:
        assert stream or not isinstance(message, Chunk)
        (arrived,) = decode(encode(message))
        for output in client.take(arrived):
            heard[output.choice] += output.token_ids
    assert client.done and list(heard.values()) == expected
