"""A request that its client cancels, in each state of its life."""

from typing import get_args

import pytest

from controller.requests.request import State
from shared.ids import BootId
from shared.messages.control import CancelRequest
from shared.messages.stream import DoneMessage
from tests.controller.requests.driven import FULL, INBOX, Driven
from tests.controller.requests.states import NOT_AT_A_WORKER, in_state


def _cancels(driven: Driven) -> list[tuple[str, int, bool]]:
    """To which workers, of which attempts, and whether silently; there are no other orders."""
    found = []
    for worker, order in driven.orders():
        assert isinstance(order, CancelRequest) and order.term == 1, order
        found.append((worker, order.attempt, order.silent))
    return found


@pytest.mark.parametrize("state", NOT_AT_A_WORKER)
def test_what_no_worker_has_ends_at_once(state: State) -> None:
    driven = in_state(state, n=2)
    attempt = driven.known().attempt
    driven.cancel()
    (end,) = driven.told()
    assert isinstance(end, DoneMessage)
    assert (end.request_id, end.attempt, end.worker) == ("r", attempt, None)
    assert [output.finish_reason for output in end.outputs] == ["cancelled"] * 2
    assert driven.state() == "finished" and driven.orders() == []
    driven.pass_time(70)
    assert driven.sent() == [] and len(driven.told()) == 1


def test_an_offer_that_was_held_is_not_sent() -> None:
    driven = Driven()
    driven.join("w1", dispatches_per_message=16)
    for name in ("first", "r"):
        driven.ask(name)
    assert driven.known().state == "offered"
    driven.cancel()
    assert driven.words() == ["done"]
    driven.pass_time(0.1)
    assert driven.next_sent().dispatch.request_id == "first"
    assert (driven.machine.active, driven.view("w1").load) == (1, 1)


def test_one_that_was_offered_is_cancelled_at_the_worker_that_takes_it() -> None:
    driven = Driven("w1")
    driven.ask()
    driven.cancel()
    sent = driven.next_sent()
    assert driven.words() == [] and driven.orders() == []
    driven.accept(sent)
    assert _cancels(driven) == [("w1", 1, False)]
    driven.finish(sent)
    assert (driven.words(), driven.state()) == ([], "finished")


def test_one_that_was_offered_goes_to_nobody_else() -> None:
    driven = Driven("w1", "w2")
    driven.ask()
    driven.cancel()
    driven.reject(driven.next_sent())
    assert driven.words() == ["done"] and driven.orders() == []
    assert driven.sent() == [] and driven.machine.active == 0


def test_where_nobody_knows_whether_it_was_taken_it_ends_here_and_silently_there() -> None:
    driven = Driven("w1", "w2")
    driven.ask()
    driven.cancel()
    driven.pass_time(1.1)
    assert driven.words()[-1] == "done" and _cancels(driven) == [("w1", 1, True)]


def test_where_it_runs_its_worker_ends_it_and_tells_its_client() -> None:
    driven = in_state("running")
    for _ in range(2):  # the first one may have been lost
        driven.cancel()
        assert _cancels(driven) == [("w1", 1, False)]
    assert driven.words() == [] and driven.state() == "running"


@pytest.mark.parametrize("how", ["given back", "gone", "started again"])
def test_it_does_not_go_on_where_its_worker_did_not_end_it(how: str) -> None:
    driven = Driven("w1", "w2")
    sent = driven.run()
    driven.emit(sent, 0, 1)
    driven.cancel()
    match how:
        case "given back":
            driven.requeue(sent)
        case "gone":
            driven.leave("w1")
        case _:
            driven.hear("w1", "joined", boot=BootId("b2"))
    assert driven.words() == ["done"] and driven.sent() == []
    assert (driven.state(), driven.machine.active) == ("finished", 0)


def test_a_list_is_the_list_runners_to_cancel() -> None:
    driven = in_state("delegated")
    driven.cancel()
    assert (driven.list_orders(), driven.words()) == ([("cancel", "")], [])


def test_what_has_ended_stays_as_it_is() -> None:
    driven = in_state("ended")
    driven.cancel()
    assert driven.orders() == [] and driven.words() == []
    assert (driven.state(), driven.known().cancelled) == ("finished", False)


@pytest.mark.parametrize("state", get_args(State))
def test_who_cancels_is_told_how_it_stands_now(state: State) -> None:
    words = {
        "offered": "dispatching", "running": "running", "delegated": "running", "lost": "unknown"
    }  # fmt: skip
    told = in_state(state).query(cancel=True)
    assert told is not None and told.state == words.get(state, "finished")


def test_of_what_is_not_known_one_is_told_so() -> None:
    driven = Driven("w1")
    told = driven.query(cancel=True)
    assert told is not None and (told.request_id, told.state) == ("r", "unknown")


def test_a_cancel_without_a_reply_subject_is_not_answered() -> None:
    driven = in_state("queued")
    before = len(driven.said)
    driven.cancel()
    assert driven.words(INBOX) == ["done"]
    assert [type(each).__name__ for each in driven.said[before:]] == [
        "SendStreamMessage",
        "WriteLog",
    ]


def test_the_place_of_a_cancelled_one_is_free() -> None:
    driven = Driven("w1")
    driven.hear("w1", **FULL)
    for name in ("r", "next"):
        driven.ask(name)
    driven.cancel()
    assert driven.machine.waiting == 1
    driven.hear("w1")
    driven.pass_time(0.1)
    assert driven.next_sent().dispatch.request_id == "next"
