"""What a stream has said can be said again, from any index."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.messages.stream import ChoiceOutput, FinishReason
from shared.output_history import OutputHistory


def output(
    index: int, *token_ids: int, choice: int = 0, finish: FinishReason | None = None, size: int = 1
) -> ChoiceOutput:
    return ChoiceOutput(choice, index, list(token_ids), "x" * size, finish_reason=finish)


def logged(
    *outputs: ChoiceOutput, choices: int = 1, max_bytes: int = 10**6, streams: bool = True
) -> OutputHistory:
    log = OutputHistory(choices, max_bytes=max_bytes, streams=streams)
    for one in outputs:
        log.append(one)
    return log


@pytest.mark.parametrize(
    ("index", "first"), [(0, 0), (1, 0), (2, 1), (3, 2), (5, 2), (6, 3), (7, 4), (99, 4)]
)
def test_all_that_holds_a_token_at_or_after_the_index_is_said_again(index: int, first: int) -> None:
    outputs = [output(0, 1, 2), output(2, 3), output(3, 4, 5, 6), output(6, 7)]
    assert list(logged(*outputs).since(0, index)) == outputs[first:]


def test_the_last_word_is_said_again_whatever_the_index() -> None:
    last = output(1, finish="stop")
    log = logged(output(0, 1), last)
    assert list(log.since(None, 1)) == [last]
    assert list(log.since(None, 99)) == [last]


def test_choices_are_told_apart_or_said_one_after_another() -> None:
    first, second = output(0, 1), output(0, 9, choice=1)
    log = logged(second, first, choices=2)
    assert list(log.since(0, 0)) == [first]
    assert list(log.since(1, 0)) == [second]
    assert list(log.since(None, 0)) == [first, second]


def test_a_choice_that_does_not_exist_has_said_nothing() -> None:
    assert list(logged(output(0, 1)).since(7, 0)) == []


def test_joined_is_every_choice_whole() -> None:
    log = logged(
        output(0, 1),
        output(0, 7, choice=1, finish="length"),
        output(1, 2),
        output(2, finish="stop", size=3),
        choices=2,
    )
    assert log.joined() == (
        ChoiceOutput(0, 0, [1, 2], "xxxxx", finish_reason="stop"),
        ChoiceOutput(1, 0, [7], "x", finish_reason="length"),
    )


def test_past_its_limit_the_oldest_of_the_longest_choice_go_and_the_newest_stay() -> None:
    log = OutputHistory(2, max_bytes=20_000)
    for index in range(1000):
        log.append(output(index, index))
        if index < 5:
            log.append(output(index, index, choice=1))
    kept = [one.index for one in log.since(0, 0)]
    assert kept == list(range(kept[0], 1000)) and 50 < len(kept) < 150
    assert len(list(log.since(1, 0))) == 5


def test_large_outputs_count_by_their_size() -> None:
    log = OutputHistory(1, max_bytes=10_000)
    for index in range(10):
        log.append(output(index, index, size=3000))
    assert [one.index for one in log.since(0, 0)] == [7, 8, 9]
    entry = {"token_id": 1, "token": "x", "logprob": -1.0}
    for index in range(10, 20):
        logprobs = [{**entry, "top": [entry] * 20}]
        log.append(ChoiceOutput(0, index, [index], "", logprobs=logprobs))
    assert len(list(log.since(0, 0))) < 6


def test_an_output_larger_than_the_limit_is_not_kept_and_breaks_nothing() -> None:
    log = logged(output(0, 1), output(1, 2, size=5000), max_bytes=1000)
    assert list(log.since(0, 0)) == []
    log.append(output(2, 3))
    assert [one.index for one in log.since(0, 0)] == [2]


def test_what_must_be_told_whole_is_never_cut_and_says_when_it_is_too_large() -> None:
    outputs = [output(index, index, size=1000) for index in range(100)]
    log = logged(*outputs, max_bytes=50_000, streams=False)
    (whole,) = log.joined()
    assert whole.token_ids == list(range(100)) and len(whole.text) == 100_000
    assert log.is_too_large
    assert not logged(*outputs, streams=False).is_too_large
    assert not logged(*outputs, max_bytes=50_000).is_too_large  # it drops the oldest


_CALL = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "f", "arguments": ""}}


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), max_size=300))
def test_an_answer_in_one_message_is_the_same_however_often_it_was_joined(
    pieces: list[tuple[int, int]],
) -> None:
    """Pieces are text, reasoning, or a part of a call, of one of two choices."""
    outputs = [
        [ChoiceOutput(choice, 0, [], "", tool_calls=[_CALL], reasoning="so")] for choice in (0, 1)
    ]
    log = logged(outputs[0][0], outputs[1][0], choices=2, streams=False)
    for index, (choice, kind) in enumerate(pieces):
        entry = {"token_id": index, "token": "x", "logprob": -1.0}
        one = ChoiceOutput(
            choice,
            index,
            [index],
            "x" * (kind == 0),
            reasoning="y" if kind == 1 else None,
            tool_calls=[{"index": 0, "function": {"arguments": "z"}}] if kind == 2 else None,
            logprobs=[entry],
        )
        outputs[choice].append(one)
        log.append(one)
    assert log.joined() == tuple(map(ChoiceOutput.joined, outputs))


@given(st.lists(st.integers(0, 4), max_size=30), st.integers(0, 100))
def test_what_came_before_an_index_and_what_is_said_again_is_the_whole(
    sizes: list[int], index: int
) -> None:
    log = OutputHistory(1)
    tokens = 0
    for size in sizes:
        log.append(output(tokens, *range(tokens, tokens + size)))
        tokens += size
    known = list(range(min(index, tokens)))
    for one in log.since(0, index):
        assert one.index <= len(known)
        known += one.token_ids[len(known) - one.index :]
    assert known == list(range(tokens))
