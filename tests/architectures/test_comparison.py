"""What counts as equal, as a tie and as different."""

import numpy as np
import pytest

from tests.architectures.comparison import Limits, compare, largest_gap
from tests.architectures.references import Said
from worker.engine.sequence import GeneratedToken, TokenLogprobs

_LIMITS = Limits(own_gap=1e-5, epsilon=1e-7)
_LOGPROBS = np.array([[-0.1, -3.0, -4.0], [-3.0, -0.1, -4.0]])
_SAID = Said([0, 1], _LOGPROBS)


def _token(place: int, token_id: int, off: float = 0.0) -> GeneratedToken:
    row = _LOGPROBS[place] + off
    top = [(id_, float(row[id_])) for id_ in (0, 1)]
    return GeneratedToken(1, token_id, None, TokenLogprobs(float(row[token_id]), top))


def test_a_row_within_rounding_is_equal() -> None:
    compared = compare(_SAID, [_token(0, 0), _token(1, 1, 1e-4)], _LIMITS)
    assert compared.difference is None and compared.tie is None
    assert compared.gap == pytest.approx(1e-4)


def test_log_probabilities_beyond_rounding_differ_although_tokens_are_the_same() -> None:
    compared = compare(_SAID, [_token(0, 0), _token(1, 1, 0.1)], _LIMITS)
    assert compared.difference is not None and compared.difference.startswith("token 2: log-prob")


def test_what_is_not_a_number_differs() -> None:
    compared = compare(_SAID, [_token(0, 0, np.nan), _token(1, 1)], _LIMITS)
    assert compared.difference is not None and compared.difference.startswith("token 1")
    assert largest_gap(_SAID, [_token(0, 0, np.nan)]) == np.inf


def test_another_token_differs_unless_two_were_as_likely() -> None:
    compared = compare(_SAID, [_token(0, 1), _token(1, 1)], _LIMITS)
    assert compared.difference == "token 1: 1 and not 0, which was likelier by 2.9"
    close = Said([0, 1], np.array([[-0.7, -0.7004, -9.0], [-3.0, -0.1, -4.0]]))
    other = GeneratedToken(1, 1, None, TokenLogprobs(-0.7004, [(0, -0.7), (1, -0.7004)]))
    assert compare(close, [other], _LIMITS).tie == 0


def test_an_answer_that_ends_early_differs() -> None:
    assert compare(_SAID, [_token(0, 0)], _LIMITS).difference == "1 tokens and not 2"
    assert compare(_SAID, [], _LIMITS).difference == "0 tokens and not 2"
