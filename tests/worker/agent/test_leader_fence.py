"""Whose orders count at a worker: terms in, refusals out."""

import pytest

from shared.errors import RequestError
from shared.ids import BootId, ControllerId
from worker.agent.leader_fence import LeaderFence, StaleTerm

ONE, OTHER = ControllerId("c-1"), ControllerId("c-2")
BOOT = BootId("b1")


def refusal(claim: LeaderFence, term: int, controller: ControllerId = ONE) -> str | None:
    """The code with which work of a term is refused."""
    try:
        claim.check_work(term, controller)
    except RequestError as error:
        return error.code
    return None


def test_work_counts_only_in_the_term_that_claimed_the_worker() -> None:
    claim = LeaderFence()
    assert refusal(claim, 1) == "not_claimed"
    claim.accept(1, ONE, BOOT)
    assert refusal(claim, 1) is None
    assert refusal(claim, 2) == "not_claimed"
    claim.accept(2, OTHER, BOOT)
    assert refusal(claim, 1) == "stale_term"
    assert refusal(claim, 2, OTHER) is None
    assert refusal(claim, 2, ONE) == "stale_term"


def test_the_same_leader_may_claim_again() -> None:
    claim = LeaderFence()
    claim.accept(3, ONE, BOOT)
    claim.accept(3, ONE, BOOT)
    assert (claim.term, claim.controller) == (3, ONE)


def test_another_boot_of_the_leader_does_not_claim_in_its_term() -> None:
    claim = LeaderFence()
    claim.accept(3, ONE, BOOT)
    with pytest.raises(StaleTerm) as caught:
        claim.accept(3, ONE, BootId("b2"))
    assert caught.value.term == 3
    claim.accept(4, ONE, BootId("b2"))


@pytest.mark.parametrize(("term", "controller"), [(2, OTHER), (3, OTHER), (2, ONE)])
def test_neither_an_earlier_term_nor_the_term_of_another_one_claims(
    term: int, controller: ControllerId
) -> None:
    claim = LeaderFence()
    claim.accept(3, ONE, BOOT)
    with pytest.raises(RequestError) as caught:
        claim.accept(term, controller, BOOT)
    assert caught.value.code == "stale_term"
    assert (claim.term, claim.controller) == (3, ONE)


def test_orders_of_operators_have_no_term_and_count_always() -> None:
    claim = LeaderFence()
    claim.check(None)
    claim.accept(5, ONE, BOOT)
    claim.check(None)
    with pytest.raises(RequestError):
        claim.check(4)
