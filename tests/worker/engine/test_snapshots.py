"""At which lengths the state of a text is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.prefix_cache import SnapshotLengths

_STEPS = st.sampled_from([1, 16, 2048])
_TOKENS = st.integers(0, 200_000)


def _first(lengths: SnapshotLengths, count: int) -> list[int]:
    found = [lengths.next(0)]
    while len(found) < count:
        found.append(lengths.next(found[-1]))
    return found


def test_a_state_of_one_size_is_kept_after_every_step_and_one_that_grows_ever_more_rarely() -> None:
    assert _first(SnapshotLengths(16), 5) == [16, 32, 48, 64, 80]
    assert _first(SnapshotLengths(16, doubling=True), 5) == [16, 32, 64, 128, 256]


@pytest.mark.parametrize("doubling", [False, True])
@given(step=_STEPS, tokens=_TOKENS)
def test_between_the_last_and_the_next_length_there_is_none(
    doubling: bool, step: int, tokens: int
) -> None:
    lengths = SnapshotLengths(step, doubling)
    last, following = lengths.last(tokens), lengths.next(tokens)
    assert last <= tokens < following
    assert lengths.next(last) == following
    assert lengths.last(last) == last
    assert lengths.last(following) == following
    assert lengths.last(following - 1) == last


@given(step=_STEPS, tokens=_TOKENS)
def test_all_states_that_grow_take_no_more_than_twice_the_text(step: int, tokens: int) -> None:
    lengths = SnapshotLengths(step, doubling=True)
    total, at = 0, lengths.next(0)
    while at <= tokens:
        total, at = total + at, lengths.next(at)
    assert total <= 2 * tokens
