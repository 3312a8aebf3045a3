"""A stream is put together from its messages, whatever comes twice, late or not at all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.client.assembler import Assembler
from shared.errors import StreamFailed
from shared.ids import RequestId, WorkerId
from shared.messages.stream import (
    ChoiceOutput,
    Chunk,
    Done,
    Failed,
    Status,
    StreamError,
    StreamMessage,
    Timings,
    Usage,
)

ID = RequestId("r")
MAC = WorkerId("mac")
OUTPUT = ChoiceOutput(0, 0, [], "")


def chunk(index: int, *token_ids: int, attempt: int = 0, choice: int = 0) -> Chunk:
    text = "".join(f"<{token}>" for token in token_ids)
    output = ChoiceOutput(choice, index, list(token_ids), text)
    return Chunk(ID, attempt, MAC, output)


def done(*outputs: ChoiceOutput, attempt: int = 0) -> Done:
    return Done(ID, attempt, MAC, Usage(1, 0, 2), Timings(0, 0, 0, 0), outputs)


def failed(code: str, attempt: int = 0) -> Failed:
    return Failed(ID, attempt, MAC, StreamError(code, "it ended"))


def tokens(assembler: Assembler, *messages: StreamMessage) -> list[int]:
    return [t for m in messages for output in assembler.take(m) for t in output.token_ids]


def test_a_stream_goes_from_accepted_to_done() -> None:
    stream = Assembler(ID)
    assert not stream.heard
    stream.take(Status(ID, 0, None, "accepted", seed=7))
    assert (stream.heard, stream.status, stream.seed, stream.worker) == (True, "accepted", 7, None)
    stream.take(Status(ID, 0, MAC, "loading", progress=0.5))
    assert (stream.status, stream.progress, stream.seed) == ("loading", 0.5, 7)
    assert tokens(stream, chunk(0, 1, 2)) == [1, 2]
    assert (stream.status, stream.progress, stream.worker, stream.done) == (
        "running", None, MAC, False,
    )  # fmt: skip
    assert tokens(stream, done(replace(OUTPUT, index=2, token_ids=[3]))) == [3]
    assert stream.done and stream.usage == Usage(1, 0, 2) and stream.timings is not None


def test_what_comes_twice_is_dropped() -> None:
    assert tokens(Assembler(ID), chunk(0, 1), chunk(0, 1), chunk(1, 2), chunk(0, 1)) == [1, 2]


def test_a_chunk_that_overlaps_is_an_error_because_its_text_cannot_be_cut() -> None:
    stream = Assembler(ID)
    stream.take(chunk(0, 1, 2))
    with pytest.raises(StreamFailed, match="do not fit together"):
        stream.take(chunk(1, 2, 3))
    assert stream.done


def test_the_text_of_a_repeated_chunk_without_tokens_is_dropped() -> None:
    stream = Assembler(ID)
    stream.take(chunk(0, 1))
    last = Chunk(ID, 0, MAC, ChoiceOutput(0, 1, [], "held back", finish_reason="length"))
    assert [output.text for message in (last, last) for output in stream.take(message)] == [
        "held back"
    ]


@given(st.lists(st.integers(1, 3), max_size=6), st.data())
def test_any_repetition_of_what_was_sent_gives_each_token_once(
    sizes: list[int], data: st.DataObject
) -> None:
    sent: list[Chunk] = []
    index = 0
    for size in sizes:
        sent.append(chunk(index, *range(index, index + size)))
        index += size
    arrived: list[Chunk] = []
    for position, one in enumerate(sent):
        arrived.append(one)
        arrived += data.draw(st.lists(st.sampled_from(sent[: position + 1]), max_size=3))
    assert tokens(Assembler(ID), *arrived) == list(range(index))


def test_choices_are_counted_apart() -> None:
    stream = Assembler(ID)
    assert tokens(stream, chunk(0, 1), chunk(0, 9, choice=1), chunk(1, 2)) == [1, 9, 2]


def test_a_gap_is_an_error_that_names_the_missing_tokens() -> None:
    stream = Assembler(ID)
    stream.take(chunk(0, 1))
    with pytest.raises(StreamFailed, match="tokens 1 to 3 of choice 0 are missing") as caught:
        stream.take(chunk(4, 5))
    assert (caught.value.code, caught.value.retryable) == ("stream_broken", True)
    assert stream.done


def test_a_lower_attempt_than_the_highest_seen_is_ignored() -> None:
    stream = Assembler(ID)
    assert tokens(stream, chunk(0, 1), chunk(1, 2, attempt=1), chunk(2, 9)) == [1, 2]
    assert tokens(stream, done(attempt=0)) == [] and not stream.done
    assert stream.take(failed("worker_lost", attempt=0)) == []
    assert tokens(stream, chunk(2, 3, attempt=1)) == [3]
    assert stream.attempt == 1


def test_a_higher_attempt_that_starts_again_gives_nothing_twice() -> None:
    stream = Assembler(ID)
    sent = [chunk(0, 1), chunk(1, 2), chunk(0, 1, attempt=1), chunk(1, 2, attempt=1)]
    assert tokens(stream, *sent, chunk(2, 3, attempt=1)) == [1, 2, 3]


@pytest.mark.parametrize(
    "late", [chunk(0, 1), done(), failed("worker_lost"), Status(ID, 0, MAC, "queued")]
)
def test_nothing_counts_after_the_end(late: StreamMessage) -> None:
    stream = Assembler(ID)
    stream.take(done())
    assert stream.take(late) == []
    assert (stream.status, stream.usage) == ("running", Usage(1, 0, 2))


def test_the_bad_end_is_raised_once() -> None:
    stream = Assembler(ID)
    with pytest.raises(StreamFailed) as caught:
        stream.take(failed("worker_lost"))
    assert (caught.value.code, stream.done, stream.usage) == ("worker_lost", True, None)
    assert stream.take(failed("worker_lost")) == []


def test_messages_of_another_request_are_ignored() -> None:
    stream = Assembler(RequestId("mine"))
    assert tokens(stream, chunk(0, 1)) == []
    assert not stream.heard


def test_an_error_without_an_id_is_for_this_stream() -> None:
    with pytest.raises(StreamFailed):
        Assembler(ID).take(replace(failed("invalid_request"), request_id=None))
