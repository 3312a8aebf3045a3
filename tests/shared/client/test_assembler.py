"""A stream is put together from its messages, whatever comes twice, early, late or not at all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.client.assembler import StreamAssembler
from shared.errors import StreamFailed
from shared.ids import RequestId, WorkerId
from shared.messages.stream import (
    ChoiceOutput,
    ChunkMessage,
    DoneMessage,
    ErrorDetails,
    FailedMessage,
    StatusMessage,
    StreamMessage,
    Timings,
    Usage,
)

ID = RequestId("r")
MAC = WorkerId("mac")
OUTPUT = ChoiceOutput(0, 0, [], "")


def chunk(index: int, *token_ids: int, attempt: int = 0, choice: int = 0) -> ChunkMessage:
    text = "".join(f"<{token}>" for token in token_ids)
    output = ChoiceOutput(choice, index, list(token_ids), text)
    return ChunkMessage(ID, attempt, MAC, output)


def done(*outputs: ChoiceOutput, attempt: int = 0, tokens: int = 0) -> DoneMessage:
    return DoneMessage(ID, attempt, MAC, Usage(1, 0, tokens), Timings(0, 0, 0, 0), outputs)


def failed(code: str, attempt: int = 0) -> FailedMessage:
    return FailedMessage(ID, attempt, MAC, ErrorDetails(code, "it ended"))


def tokens(assembler: StreamAssembler, *messages: StreamMessage) -> list[int]:
    return [t for m in messages for output in assembler.take(m) for t in output.token_ids]


def test_a_stream_goes_from_accepted_to_done() -> None:
    stream = StreamAssembler(ID)
    assert not stream.received_any
    stream.take(StatusMessage(ID, 0, None, "accepted", seed=7))
    assert (stream.received_any, stream.status, stream.seed, stream.worker) == (
        True,
        "accepted",
        7,
        None,
    )
    stream.take(StatusMessage(ID, 0, MAC, "loading", progress=0.5))
    assert (stream.status, stream.progress, stream.seed) == ("loading", 0.5, 7)
    assert tokens(stream, chunk(0, 1, 2)) == [1, 2]
    assert (stream.status, stream.progress, stream.worker, stream.done) == (
        "running", None, MAC, False,
    )  # fmt: skip
    assert tokens(stream, done(replace(OUTPUT, index=2, token_ids=[3]), tokens=3)) == [3]
    assert stream.done and stream.usage == Usage(1, 0, 3) and stream.timings is not None


def test_a_chunk_that_overlaps_is_an_error_because_its_text_cannot_be_cut() -> None:
    stream = StreamAssembler(ID)
    stream.take(chunk(0, 1, 2))
    with pytest.raises(StreamFailed, match="do not fit together") as caught:
        stream.take(chunk(1, 2, 3))
    assert caught.value.code == "stream_broken"


def test_the_text_of_a_repeated_chunk_without_tokens_is_dropped() -> None:
    stream = StreamAssembler(ID)
    stream.take(chunk(0, 1))
    last = ChunkMessage(ID, 0, MAC, ChoiceOutput(0, 1, [], "held back", finish_reason="length"))
    assert [output.text for message in (last, last) for output in stream.take(message)] == [
        "held back"
    ]


def test_what_comes_early_waits_and_what_is_missing_is_known() -> None:
    stream = StreamAssembler(ID)
    assert tokens(stream, chunk(0, 1), chunk(2, 3), chunk(4, 5)) == [1]
    assert stream.missing_from == 1
    assert tokens(stream, chunk(3, 4)) == []
    assert tokens(stream, chunk(1, 2)) == [2, 3, 4, 5]
    assert stream.missing_from is None


def test_an_end_before_its_tokens_waits_for_them() -> None:
    stream = StreamAssembler(ID)
    last = replace(OUTPUT, index=2, token_ids=[3], finish_reason="stop")
    assert tokens(stream, chunk(0, 1), done(last, tokens=3)) == [1]
    assert not stream.done and stream.missing_from == 1
    assert tokens(stream, chunk(1, 2)) == [2, 3]
    assert stream.done and stream.usage == Usage(1, 0, 3)


def test_an_end_that_counts_more_tokens_than_came_waits_for_them() -> None:
    stream = StreamAssembler(ID)
    assert tokens(stream, chunk(0, 1), done(tokens=2)) == [1]
    assert not stream.done and stream.missing_from == 1 == stream.resend_from
    assert tokens(stream, chunk(1, 2)) == [2]
    assert stream.done


def said(choice: int, index: int, text: str = "", *token_ids: int) -> ChunkMessage:
    """The last word of a choice."""
    output = ChoiceOutput(choice, index, list(token_ids), text, finish_reason="stop")
    return ChunkMessage(ID, 0, MAC, output)


def test_an_end_before_the_last_word_of_another_choice_waits_for_it() -> None:
    stream = StreamAssembler(ID, choices=2)
    last_word = said(0, 1, "held back")
    tokens(stream, chunk(0, 1), chunk(0, 9, choice=1))
    stream.take(done(said(1, 1).output, tokens=2))
    assert not stream.done and stream.missing_from == 1
    assert stream.take(last_word) == [last_word.output]
    assert stream.done


def test_an_end_waits_for_a_choice_of_which_nothing_came_though_it_has_no_tokens() -> None:
    stream = StreamAssembler(ID, choices=3)
    tokens(stream, chunk(0, 1), said(0, 1))
    stream.take(done(said(2, 0).output, tokens=1))
    assert not stream.done and stream.missing_from == 0
    assert stream.take(said(1, 0, "?")) == [said(1, 0, "?").output]
    assert stream.done


def test_who_ends_a_stream_need_not_know_all_that_came() -> None:
    """A controller that hears of a cancel between two workers."""
    stream = StreamAssembler(ID, choices=3)
    came = chunk(0, 1), chunk(0, 2, choice=1), chunk(2, 4, choice=1)
    assert tokens(stream, *came) == [1, 2]
    cancelled = [replace(OUTPUT, choice=n, finish_reason="cancelled") for n in range(3)]
    last = stream.take(done(*cancelled))
    assert [(one.choice, one.index, one.finish_reason) for one in last] == [
        (0, 1, "cancelled"), (1, 1, "cancelled"), (2, 0, "cancelled")
    ]  # fmt: skip
    assert stream.done and stream.usage == Usage(1, 0, 2)
    assert stream.missing_from is None


def test_who_ends_one_choice_before_the_others_need_not_know_all_that_came() -> None:
    """The leader that fails one prompt of a list."""
    stream = StreamAssembler(ID, choices=2)
    assert tokens(stream, chunk(0, 1), chunk(1, 2), chunk(3, 4)) == [1, 2]
    failed_one = ChunkMessage(ID, 1, None, replace(OUTPUT, finish_reason="error"))
    (last,) = stream.take(failed_one)
    assert (last.choice, last.index, last.finish_reason) == (0, 2, "error")
    (other,) = stream.take(done(replace(OUTPUT, choice=1, finish_reason="stop"), attempt=1))
    assert stream.done and other.choice == 1
    assert stream.usage == Usage(1, 0, 2)


def test_a_choice_of_which_everything_was_lost_is_asked_for_from_its_start() -> None:
    stream = StreamAssembler(ID, choices=2)
    tokens(stream, chunk(0, 1, 2, 3), said(0, 3), done(said(1, 2).output, tokens=5))
    assert not stream.done and stream.missing_from == 0
    assert tokens(stream, chunk(0, 8, 9, choice=1)) == [8, 9]
    assert stream.done


def test_what_came_early_from_a_lower_attempt_is_forgotten() -> None:
    stream = StreamAssembler(ID)
    tokens(stream, chunk(0, 1), chunk(2, 9))
    assert tokens(stream, chunk(1, 2, attempt=1), chunk(2, 3, attempt=1)) == [2, 3]
    assert stream.missing_from is None


@given(st.lists(st.integers(1, 3), max_size=8), st.integers(1, 3), st.data())
def test_any_order_and_any_repetition_gives_each_token_once_and_then_the_end(
    sizes: list[int], choices: int, data: st.DataObject
) -> None:
    sent: list[StreamMessage] = []
    index = 0
    for size in sizes:
        new = range(index, index + size)
        sent += [chunk(index, *new, choice=choice) for choice in range(choices)]
        index += size
    sent.append(done(tokens=index * choices))
    arrived = data.draw(st.permutations(sent * data.draw(st.integers(1, 3))))
    stream = StreamAssembler(ID)
    outputs = [output for message in arrived for output in stream.take(message)]
    for choice in range(choices):
        mine = [t for output in outputs if output.choice == choice for t in output.token_ids]
        assert mine == list(range(index))
    assert stream.done and stream.missing_from is None


def test_a_lower_attempt_than_the_highest_seen_is_ignored() -> None:
    stream = StreamAssembler(ID)
    assert tokens(stream, chunk(0, 1), chunk(1, 2, attempt=1), chunk(2, 9)) == [1, 2]
    assert tokens(stream, done(attempt=0, tokens=2)) == [] and not stream.done
    assert stream.take(failed("worker_lost", attempt=0)) == []
    assert tokens(stream, chunk(2, 3, attempt=1)) == [3]
    assert stream.attempt == 1


def test_a_higher_attempt_that_starts_again_gives_nothing_twice() -> None:
    stream = StreamAssembler(ID)
    sent = [chunk(0, 1), chunk(1, 2), chunk(0, 1, attempt=1), chunk(1, 2, attempt=1)]
    assert tokens(stream, *sent, chunk(2, 3, attempt=1)) == [1, 2, 3]


@pytest.mark.parametrize(
    "late", [chunk(0, 1), done(), failed("worker_lost"), StatusMessage(ID, 0, MAC, "queued")]
)
def test_nothing_counts_after_the_end(late: StreamMessage) -> None:
    stream = StreamAssembler(ID)
    stream.take(done())
    assert stream.take(late) == []
    assert (stream.status, stream.usage) == ("running", Usage(1, 0, 0))


def test_the_bad_end_is_raised_once() -> None:
    stream = StreamAssembler(ID)
    with pytest.raises(StreamFailed) as caught:
        stream.take(failed("worker_lost"))
    assert (caught.value.code, stream.done, stream.usage) == ("worker_lost", True, None)
    assert stream.take(failed("worker_lost")) == []


def test_messages_of_another_request_are_ignored() -> None:
    stream = StreamAssembler(RequestId("mine"))
    assert tokens(stream, chunk(0, 1)) == []
    assert not stream.received_any


def test_an_error_without_an_id_is_for_this_stream() -> None:
    with pytest.raises(StreamFailed):
        StreamAssembler(ID).take(replace(failed("invalid_request"), request_id=None))


@pytest.mark.parametrize("choices", [1, 2])
def test_a_later_attempt_whose_answer_ends_earlier_ends_it(choices: int) -> None:
    """Workers of other hardware may answer otherwise; what was received stays."""
    stream = StreamAssembler(ID, choices=choices)
    assert tokens(stream, chunk(0, 1), chunk(1, 2)) == [1, 2]
    last = replace(OUTPUT, token_ids=[1], text="<1>", finish_reason="stop")
    if choices == 1:
        (end,) = stream.take(done(last, attempt=1, tokens=1))
    else:
        (end,) = stream.take(ChunkMessage(ID, 1, MAC, last))
    assert (end.index, end.token_ids, end.text, end.finish_reason) == (2, [], "", "stop")
    assert stream.done == (choices == 1) and stream.missing_from is None
