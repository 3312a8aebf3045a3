"""Which workers have told what they have, and what may begin before all have."""

import pytest

from controller.lifecycle.claimed_workers import ClaimedWorkers, turns_wait_until
from shared.ids import WorkerId

ONE, OTHER = WorkerId("one"), WorkerId("other")


def test_where_no_worker_is_there_all_may_begin() -> None:
    claims = ClaimedWorkers([], 10.0)
    assert not claims.incomplete
    assert claims.may_start(10.0, turn=True) and claims.may_start(10.0, turn=False)


def test_before_all_have_answered_nothing_begins_and_after_a_second_only_no_turn() -> None:
    claims = ClaimedWorkers([ONE, OTHER], 10.0)
    claims.answered(ONE, 10.0)
    assert claims.incomplete and claims.starts_at == 11.0
    for now, begins in ((10.9, False), (11.0, True), (99.0, True)):
        assert claims.may_start(now, turn=False) is begins
        assert not claims.may_start(now, turn=True)


def test_when_all_have_answered_turns_may_begin() -> None:
    claims = ClaimedWorkers([ONE, OTHER], 10.0)
    for worker in (OTHER, ONE):
        assert claims.incomplete
        claims.answered(worker, 10.0)
    assert not claims.incomplete and claims.may_start(10.0, turn=True)


def test_who_is_gone_need_not_answer() -> None:
    claims = ClaimedWorkers([ONE], 10.0)
    claims.reset(ONE, 12.0)
    assert not claims.incomplete


def test_turns_wait_a_moment_for_what_was_lost_with_a_worker_that_had_not_told() -> None:
    claims = ClaimedWorkers([ONE, OTHER], 10.0)
    claims.answered(ONE, 10.0)
    claims.reset(OTHER, 12.0)
    for now, begins in ((12.0, False), (16.4, False), (16.5, True)):
        assert claims.may_start(now, turn=True) is begins
        assert claims.may_start(now, turn=False)


def test_turns_do_not_wait_for_a_worker_that_had_told() -> None:
    claims = ClaimedWorkers([ONE], 10.0)
    claims.answered(ONE, 10.0)
    claims.reset(ONE, 12.0)
    assert claims.may_start(12.0, turn=True)


def test_who_comes_later_is_not_waited_for() -> None:
    claims = ClaimedWorkers([ONE], 10.0)
    claims.answered(ONE, 10.0)
    assert claims.ask(OTHER, 11.0) and not claims.incomplete


def test_one_is_asked_once_in_a_second() -> None:
    claims = ClaimedWorkers([ONE], 10.0)
    asked = [claims.ask(ONE, now) for now in (10.0, 10.5, 10.9, 11.0, 11.5)]
    assert asked == [True, False, False, True, False]
    assert claims.ask(OTHER, 11.5)


def test_who_started_again_is_asked_at_once() -> None:
    claims = ClaimedWorkers([ONE], 10.0)
    assert claims.ask(ONE, 10.0)
    claims.reset(ONE, 10.05)
    assert claims.ask(ONE, 10.1)


def test_how_long_ago_one_was_asked_is_known() -> None:
    claims = ClaimedWorkers([ONE], 10.0)
    assert claims.since_asked_s(ONE, 12.0) == 0
    claims.ask(ONE, 12.0)
    claims.ask(ONE, 12.5)  # it is not, so soon
    assert claims.since_asked_s(ONE, 15.0) == 3
    claims.reset(ONE, 15.0)
    assert claims.since_asked_s(ONE, 15.0) == 0


def test_of_who_answered_it_is_known_since_when_its_answer_is_old() -> None:
    claims = ClaimedWorkers([ONE], 10.0)
    assert claims.answer_age_ms(ONE, 12.0) is None
    claims.ask(ONE, 12.0)
    claims.answered(ONE, 12.0)
    assert claims.answer_age_ms(ONE, 15.0) == 4000, "and a second, for what was on its way"
    claims.ask(ONE, 15.0)
    assert claims.answer_age_ms(ONE, 16.0) == 5000, (
        "not since what it was asked, and did not answer"
    )
    claims.reset(ONE, 16.0)
    assert claims.answer_age_ms(ONE, 16.0) is None


def test_turns_wait_for_what_was_lost_with_a_worker_before_the_term() -> None:
    claims = ClaimedWorkers([ONE], 10.0, turns_wait_until=12.5)
    claims.answered(ONE, 10.0)
    for now, begins in ((10.0, False), (12.4, False), (12.5, True)):
        assert claims.may_start(now, turn=True) is begins
        assert claims.may_start(now, turn=False)


def test_what_was_lost_long_before_the_term_is_not_waited_for() -> None:
    assert ClaimedWorkers([], 10.0, turns_wait_until=6.5).may_start(10.0, turn=True)


# Until when turns wait.


@pytest.mark.parametrize(
    ("was_released", "started_at", "last_gone_at", "until"),
    [
        (True, 0.0, None, 99.0),
        (True, 0.0, 98.0, 99.0),
        (True, 97.0, None, 101.5),
        (False, 0.0, None, 4.5),
        (False, 0.0, 98.0, 102.5),
        (False, 97.0, None, 101.5),
        (False, 97.0, 98.0, 102.5),
    ],
)
def test_turns_wait_for_workers_that_the_leader_may_not_know(
    was_released: bool, started_at: float, last_gone_at: float | None, until: float
) -> None:
    """In a fault campaign a controller that had just started led after one that left in good order;
    a worker stood still meanwhile, and the next turn of a session that it served began."""
    assert until == turns_wait_until(
        first_term=False,
        was_released=was_released,
        started_at=started_at,
        settled_at=99.0,
        last_gone_at=last_gone_at,
    )


def test_in_the_first_term_turns_wait_for_nothing() -> None:
    assert 0.0 == turns_wait_until(
        first_term=True, was_released=False, started_at=5.0, settled_at=8.0, last_gone_at=None
    )
