"""How texts are put into requests, and what comes of their answers."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.client import Completion, Timings, Usage
from shared.client.embeddings import Embeddings
from shared.client.text_batches import batches, joined
from shared.errors import StreamFailed
from shared.ids import RequestId
from shared.messages.stream import ChoiceOutput, ErrorDetails
from shared.messages.vectors import packed

_TEXTS = st.lists(st.text(min_size=1, max_size=40) | st.lists(st.integers(0, 9), min_size=1))


def _completion(*outputs: ChoiceOutput, tokens: int = 5) -> Completion:
    times = Timings(0, 0, 0, 0)
    return Completion(RequestId("r"), None, outputs, Usage(tokens, 0, 0), times, None, ("slow",))


def _output(choice: int, number: float) -> ChoiceOutput:
    return ChoiceOutput(choice, 0, [], "", finish_reason="stop", embedding=packed([number]))


@given(_TEXTS, st.integers(10, 200))
def test_batches_fit_and_keep_the_order(texts: list[str | list[int]], max_bytes: int) -> None:
    parts = list(batches(texts, max_bytes))
    assert [text for part in parts for text in part] == texts
    assert all(len(part) == 1 or len(orjson.dumps(part)) <= max_bytes + 2 for part in parts)
    assert all(len(part) <= 2048 for part in parts)


def test_a_batch_has_as_many_texts_as_a_request_may_have() -> None:
    assert [len(part) for part in batches(["a"] * 5000, 10**9)] == [2048, 2048, 904]


def test_the_vectors_of_all_batches_are_in_order_with_the_sum_of_tokens() -> None:
    answers = [_completion(_output(0, 1.0), _output(1, 0.5)), _completion(_output(0, 0))]
    embeddings = Embeddings.of(joined(answers))
    assert embeddings.vectors == [[1.0], [0.5], [0.0]]
    assert embeddings.usage == Usage(10, 0, 0)
    assert embeddings.warnings == ("slow",)


def test_a_text_that_failed_is_named_by_its_number_among_all() -> None:
    error = ErrorDetails.of("context_length_exceeded", "input.1: too long", "input.1")
    assert error.counted_from(2048).param == "input.2049"
    bad = ChoiceOutput(1, 0, [], "", finish_reason="error", error=error)
    with pytest.raises(StreamFailed) as raised:
        joined([_completion(_output(0, 1.0), _output(1, 1.0)), _completion(_output(0, 1.0), bad)])
    assert (raised.value.param, raised.value.message) == ("input.3", "input.3: too long")
    other = ErrorDetails.of("invalid_request", "dimensions: too many", "dimensions")
    assert other.counted_from(7).param == "dimensions"


def test_a_text_that_is_alone_in_its_request_is_named_by_its_number_too() -> None:
    error = ErrorDetails.of("context_length_exceeded", "input: too long", "input")
    assert error.counted_from(64).param == "input"
    assert error.counted_from(64, alone=True) == ErrorDetails.of(
        "context_length_exceeded", "input.64: too long", "input.64"
    )


def test_a_text_without_a_result_is_no_zero() -> None:
    """Somebody cancelled the request."""
    ended = ChoiceOutput(1, 0, [], "", finish_reason="cancelled")
    with pytest.raises(StreamFailed, match=r"^input\.1: .*cancelled"):
        joined([_completion(_output(0, 1.0), ended)])
