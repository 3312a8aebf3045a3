"""How far an answer has come, as tokens are told."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.requests.answer_progress import AnswerProgress
from shared.ids import RequestId
from shared.messages.dispatch import Continuation
from shared.messages.request_events import TokensEmitted
from tests.controller.values import ADA


def emitted(index: int, *token_ids: int, choice: int = 0, **fields: Any) -> TokensEmitted:
    values = {"text_sent": 0, **fields}
    return TokensEmitted(
        request_id=RequestId("r"), client=ADA, attempt=1, choice=choice, index=index,
        token_ids=list(token_ids), **values,
    )  # fmt: skip


def noted(*events: TokensEmitted, resumed_tokens: int = 0) -> AnswerProgress:
    progress = AnswerProgress(resumed_tokens)
    for number, event in enumerate(events):
        progress.record(event, 100.0 * (number + 1))
    return progress


@pytest.mark.parametrize(
    ("events", "tokens"),
    [
        ([emitted(0, 1, 2), emitted(2, 3)], {0: [1, 2, 3]}),
        ([emitted(0, 1, 2), emitted(0, 1, 2)], {0: [1, 2]}),
        ([emitted(0, 1, 2), emitted(1, 2, 3)], {0: [1, 2, 3]}),
        ([emitted(0, 1), emitted(0, 9, choice=1), emitted(1, 2)], {0: [1, 2], 1: [9]}),
    ],
)
def test_emitted_tokens_are_kept_once_each(
    events: list[TokensEmitted], tokens: dict[int, list[int]]
) -> None:
    progress = noted(*events)
    assert progress.tokens == tokens
    assert progress.count == sum(map(len, tokens.values()))


def test_tokens_after_a_gap_are_not_taken_for_those_that_are_missing() -> None:
    progress = noted(emitted(0, 1), emitted(2, 3, text_sent=9, finish_reason="stop"))
    assert (progress.tokens, progress.text_sent, progress.finish_reasons) == ({0: [1]}, {0: 0}, {})


def test_before_the_first_token_there_is_nothing_to_go_on_from() -> None:
    progress = AnswerProgress()
    assert not progress.started and progress.continuation([]) is None


def test_another_attempt_goes_on_from_all_that_is_known() -> None:
    progress = noted(
        emitted(0, 1, 2, text_sent=4, cached_tokens=7),
        emitted(2, 3, text_sent=6),
        emitted(0, 9, choice=1, text_sent=1, finish_reason="length", cached_tokens=8),
    )
    assert progress.continuation([]) == Continuation(
        token_ids={0: [1, 2, 3], 1: [9]},
        text_sent={0: 6, 1: 1},
        finish_reasons={1: "length"},
        first_token_ms=100.0,
        cached_tokens=7,
    )


def test_a_choice_may_end_without_another_token() -> None:
    progress = noted(emitted(0, 1, text_sent=4), emitted(1, finish_reason="stop"))
    known = progress.continuation([])
    assert known is not None
    assert (known.text_sent, known.finish_reasons) == ({0: 4}, {0: "stop"})


def test_of_a_resumed_answer_the_tokens_count_that_its_client_has_not() -> None:
    """Workers count from the beginning, with those of the client's `resume`."""
    progress = noted(emitted(2, 3, text_sent=5), emitted(3, 4, text_sent=6), resumed_tokens=2)
    assert (progress.tokens, progress.count) == ({0: [3, 4]}, 2)
    known = progress.continuation([1, 2])
    assert known is not None and known.token_ids == {0: [1, 2, 3, 4]}


def test_what_a_worker_tells_of_it_is_what_it_would_go_on_from() -> None:
    progress = noted(emitted(2, 3, text_sent=5, cached_tokens=1), resumed_tokens=2)
    known = progress.continuation([1, 2])
    assert AnswerProgress.from_continuation(known, 2) == progress
    assert AnswerProgress.from_continuation(None, 2) == AnswerProgress(2)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30))
def test_whatever_comes_twice_or_not_at_all_it_is_a_beginning_of_the_answer(
    spans: list[tuple[int, int]],
) -> None:
    answer = list(range(100, 112))
    progress = AnswerProgress()
    for index, count in spans:
        before = progress.count
        progress.record(
            emitted(index, *answer[index : index + count], text_sent=index + count), 1.0
        )
        assert progress.count >= before
        assert progress.tokens.get(0, []) == answer[: progress.count]
