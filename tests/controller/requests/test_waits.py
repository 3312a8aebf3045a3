"""What clients hear while their requests wait, and when that ends, by value."""

import pytest

from controller.requests.request import State
from shared.messages.stream import KEEP_ALIVE_S, StatusMessage
from tests.controller.requests.driven import FULL, Driven
from tests.controller.requests.states import NOT_AT_A_WORKER, in_state

# What clients hear while they wait.


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("waiting", "earlier_turn"),
        ("fetching", "history"),
        ("queued", "queue_full"),
        ("offered", "dispatching"),
        ("backing_off", "retry"),
    ],
)
def test_a_client_that_waits_is_told_so_after_a_moment_and_then_again_and_again(
    state: State, reason: str
) -> None:
    driven = in_state(state, timeout_ms=100_000)
    since = driven.known().arrived_at
    driven.pass_time(since + 0.49 - driven.now)
    assert _reasons(driven) == []
    driven.pass_time(0.02)
    assert _reasons(driven) == [reason]
    for count in range(2, 5):
        driven.pass_time(KEEP_ALIVE_S)
        assert _reasons(driven) == [reason] * count


@pytest.mark.parametrize("state", [*NOT_AT_A_WORKER, "offered"])
def test_who_waits_for_a_whole_answer_is_not_told_that_it_does(state: State) -> None:
    driven = in_state(state, stream=False, timeout_ms=100_000)
    driven.pass_time(5)
    assert _reasons(driven) == []


def test_what_a_worker_has_nobody_but_that_speaks_of() -> None:
    driven = in_state("running")
    driven.pass_time(10)
    assert driven.words() == []


@pytest.mark.parametrize("begun", [False, True])
def test_after_a_failure_it_is_told_as_often(begun: bool) -> None:
    driven = Driven("w1", waiting_room={"max_wait_ms": 60_000})
    sent = driven.run(timeout_ms=100_000)
    driven.pass_time(0.6)
    if begun:
        driven.emit(sent, 0, 1)
    driven.requeue(sent)
    for _ in range(7):
        told = len(driven.words())
        driven.hear("w1", **FULL)
        driven.pass_time(KEEP_ALIVE_S + 0.01)
        assert len(driven.words()) > told
    assert driven.known().state == "queued"
    assert driven.words()[-1] == ("migrating" if begun else "queue_full")


# Deadlines.


@pytest.mark.parametrize("state", ["waiting", "fetching", "queued"])
def test_what_no_worker_has_ends_at_its_deadline(state: State) -> None:
    driven = in_state(state, timeout_ms=2000, stream=False)
    driven.pass_time(driven.known().arrived_at + 1.99 - driven.now)
    assert driven.words() == []
    driven.pass_time(0.02)
    assert (driven.words(), driven.state()) == (["deadline_exceeded"], "failed")
    assert driven.orders() == []


@pytest.mark.parametrize("state", ["offered", "running"])
def test_where_a_worker_has_it_that_is_given_some_seconds_more_to_end_it(state: State) -> None:
    driven = in_state(state, timeout_ms=2000, stream=False)
    driven.pass_time(6.9)
    assert driven.words() == [] and driven.orders() == []
    driven.pass_time(0.2)
    assert driven.words() == ["deadline_exceeded"]
    ((worker, order),) = driven.orders()
    assert (worker, order.verb, getattr(order, "silent", None)) == ("w1", "cancel", True)
    assert driven.machine.active == 0 and driven.view("w1").load == 0


def test_the_deadline_of_a_list_is_the_list_runners() -> None:
    driven = in_state("delegated", timeout_ms=1000)
    driven.pass_time(10)
    assert (driven.words(), driven.list_orders()) == ([], [])


def _reasons(driven: Driven) -> list[str | None]:
    """What the client of `r` was told that says why it waits."""
    told = [
        each for each in driven.told() if isinstance(each, StatusMessage) and each.request_id == "r"
    ]
    assert all((each.status, each.worker) == ("queued", None) for each in told)
    return [each.reason for each in told]
