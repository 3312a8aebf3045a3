"""Whose orders count at a worker: terms in, refusals out."""

import pytest

from shared.errors import RequestError
from shared.ids import ControllerId
from worker.agent.leader_fence import LeaderFence

ONE, OTHER = ControllerId("c-1"), ControllerId("c-2")


def refusal(claim: LeaderFence, term: int | None, controller: ControllerId = ONE) -> str | None:
    """The code with which work of a term is refused."""
    try:
        claim.check_work(term, controller)
    except RequestError as error:
        return error.code
    return None


def test_work_counts_only_in_the_term_that_claimed_the_worker() -> None:
    claim = LeaderFence()
    assert refusal(claim, 1) == "not_claimed"
    claim.accept(1, ONE)
    assert refusal(claim, 1) is None
    assert refusal(claim, 2) == "not_claimed"
    claim.accept(2, OTHER)
    assert refusal(claim, 1) == "stale_term"
    assert refusal(claim, 2, OTHER) is None
    assert refusal(claim, 2, ONE) == "stale_term"


def test_the_same_leader_may_claim_again() -> None:
    claim = LeaderFence()
    claim.accept(3, ONE)
    claim.accept(3, ONE)
    assert (claim.term, claim.controller) == (3, ONE)


@pytest.mark.parametrize(("term", "controller"), [(2, OTHER), (3, OTHER), (2, ONE)])
def test_neither_an_earlier_term_nor_the_term_of_another_one_claims(
    term: int, controller: ControllerId
) -> None:
    claim = LeaderFence()
    claim.accept(3, ONE)
    with pytest.raises(RequestError) as caught:
        claim.accept(term, controller)
    assert caught.value.code == "stale_term"
    assert (claim.term, claim.controller) == (3, ONE)


def test_orders_of_operators_have_no_term_and_count_always() -> None:
    claim = LeaderFence()
    claim.check(None)
    claim.accept(5, ONE)
    claim.check(None)
    with pytest.raises(RequestError):
        claim.check(4)


def test_a_controller_of_a_release_without_terms_is_served_until_a_leader_claims() -> None:
    claim = LeaderFence()
    assert refusal(claim, None) is None
    claim.accept(1, ONE)
    assert refusal(claim, None) == "stale_term"
