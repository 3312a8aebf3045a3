"""Which term a leader begins: no single voice moves it, and it stays below the bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.leader.terms import PLAUSIBLE_TERM, next_term, term_of_most
from shared.messages.base import MAX_TERM

TERMS = st.integers(0, MAX_TERM)


def test_a_takeover_writes_the_next_term_of_the_record_whatever_is_known() -> None:
    assert next_term(4, [9, MAX_TERM]) == 5
    assert next_term(PLAUSIBLE_TERM - 1, []) == PLAUSIBLE_TERM


def test_without_a_record_the_next_term_is_above_all_that_is_plausible() -> None:
    assert next_term(None, []) == 1
    assert next_term(None, [3, 7, PLAUSIBLE_TERM, MAX_TERM]) == 8


@pytest.mark.parametrize("record", [PLAUSIBLE_TERM, MAX_TERM - 1, MAX_TERM])
def test_an_implausible_record_is_none(record: int) -> None:
    assert next_term(record, [3]) == 4


@given(st.none() | TERMS, st.lists(TERMS))
def test_no_term_comes_near_the_bound_of_the_wire(record: int | None, known: list[int]) -> None:
    assert 1 <= next_term(record, known) <= PLAUSIBLE_TERM


@pytest.mark.parametrize(
    ("refused", "workers", "later"),
    [
        ([], 3, None),
        ([9], 1, 10),
        ([9], 2, None),
        ([9, 40], 2, 10),
        ([9, 40], 3, 10),
        ([9, 40, 50], 3, 41),
        ([9, 40, 50], 6, None),
        ([5, 5], 2, 6),
        ([4, 4], 2, None),
        ([MAX_TERM], 1, None),
        ([PLAUSIBLE_TERM], 1, None),
        ([9, MAX_TERM], 2, 10),
    ],
)
def test_the_leader_steps_above_the_lowest_terms_until_most_do_not_refuse(
    refused: list[int], workers: int, later: int | None
) -> None:
    assert term_of_most(5, refused, workers) == later


@given(TERMS, st.lists(TERMS), st.integers(0, 9))
def test_after_the_step_at_most_half_of_the_workers_refuse(
    term: int, refused: list[int], others: int
) -> None:
    workers = len(refused) + others
    later = term_of_most(term, refused, workers)
    if later is not None:
        assert term < later <= PLAUSIBLE_TERM
        assert 2 * sum(each >= later for each in refused) <= workers
        assert 2 * len(refused) > workers
