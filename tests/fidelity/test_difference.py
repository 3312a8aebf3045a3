"""Which differences of two answers rounding explains."""

import pytest

from tests.fidelity.difference import is_tie
from tests.worker.engine.reference_sampler import gumbel_noise
from tests.worker.engine.samplings import GREEDY, sampling
from worker.link.orders import Sampling

_VOCABULARY = 258
_PLACE = 3
_WAYS = [sampling(temperature=0.8, seed=1), sampling(temperature=1.3, top_k=40, seed=2)]


def _is_tie(how: Sampling, one: float, other: float) -> bool:
    return is_tie(how, _PLACE, {5: one, 9: other}, 5, 9, _VOCABULARY)


def test_two_likeliest_tokens_tie_where_they_are_as_likely() -> None:
    assert _is_tie(GREEDY, -0.7, -0.7004)
    assert not _is_tie(GREEDY, -0.7, -0.702)


@pytest.mark.parametrize("how", _WAYS, ids=str)
def test_two_drawn_tokens_tie_where_they_are_as_likely_with_the_noise_of_the_draw(
    how: Sampling,
) -> None:
    noise = gumbel_noise(how, _PLACE, _VOCABULARY)
    as_good = -2.0 + how.temperature * float(noise[5] - noise[9])
    assert abs(as_good + 2.0) > 0.01
    assert _is_tie(how, -2.0, as_good + 4e-4)
    assert not _is_tie(how, -2.0, as_good + 2e-3)
    assert not _is_tie(how, -2.0, -2.0)


def test_a_token_that_is_not_among_the_likeliest_is_a_fault() -> None:
    known = {5: -0.7}
    assert not is_tie(GREEDY, _PLACE, known, 5, 9, _VOCABULARY)
    assert not is_tie(GREEDY, _PLACE, {}, 5, 9, _VOCABULARY)
