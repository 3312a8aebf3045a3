"""A request that its client publishes again, in each state of its life: who is told what."""

from typing import get_args

import pytest

from controller.requests.events import PromptListEnded, SessionHistoryReceived
from controller.requests.request import State
from shared.ids import RequestId
from shared.messages.control import AttachInbox
from shared.messages.stream import DoneMessage, ErrorDetails, FailedMessage, Timings, Usage
from tests.controller.requests.driven import INBOX, LATER, Driven
from tests.controller.requests.states import HELLO, NOT_AT_A_WORKER, in_state
from tests.controller.values import ADA

REASONS: dict[State, str] = {
    "waiting": "earlier_turn",
    "fetching": "history",
    "queued": "queue_full",
    "backing_off": "retry",
    "offered": "dispatching",
}
KEY = ADA, RequestId("r")


def _again(driven: Driven, inbox: str = LATER) -> None:
    """The same body, from another inbox."""
    body = driven.known().contents.model_dump(exclude_unset=True)
    driven.ask(inbox=inbox, **body)


def _attached(driven: Driven) -> list[tuple[str, int, str]]:
    """To which workers orders went, for which attempt and inbox; there are no others."""
    found = []
    for worker, order in driven.orders():
        assert isinstance(order, AttachInbox) and order.term == 1, order
        found.append((worker, order.attempt, order.inbox))
    return found


# Before a worker has it.


@pytest.mark.parametrize("state", REASONS)
def test_who_comes_later_is_told_at_once_why_it_waits_and_the_first_one_nothing(
    state: State,
) -> None:
    driven = in_state(state)
    _again(driven)
    assert (driven.words(LATER), driven.words()) == ([REASONS[state]], [])
    assert driven.known().inboxes == [INBOX, LATER]
    assert driven.orders() == [] and driven.sent() == []


@pytest.mark.parametrize("state", REASONS)
def test_who_waits_for_a_whole_answer_is_told_nothing_yet(state: State) -> None:
    driven = in_state(state, stream=False)
    _again(driven)
    assert driven.words(LATER) == []
    assert driven.known().inboxes == [INBOX, LATER]


@pytest.mark.parametrize("state", NOT_AT_A_WORKER)
def test_all_hear_of_an_end_that_comes_from_here(state: State) -> None:
    driven = in_state(state)
    _again(driven)
    driven.cancel()
    assert driven.words()[-1] == driven.words(LATER)[-1] == "done"


def test_a_worker_hears_of_all_who_listen_when_it_is_asked() -> None:
    driven = in_state("queued")
    _again(driven)
    driven.hear("w1")
    driven.pass_time(0.1)
    sent = driven.next_sent()
    assert sent.dispatch.inboxes == [INBOX, LATER]
    driven.accept(sent)
    assert _attached(driven) == []


def test_who_comes_while_a_worker_is_asked_is_attached_when_it_has_it() -> None:
    driven = Driven("w1", "w2")
    driven.ask()
    sent = driven.next_sent()
    _again(driven)
    assert _attached(driven) == []
    driven.accept(sent)
    assert _attached(driven) == [("w1", 1, LATER)]


def test_who_comes_while_a_worker_is_asked_is_told_to_the_next_one() -> None:
    driven = Driven("w1", "w2")
    driven.ask()
    _again(driven)
    driven.reject(driven.next_sent())
    sent = driven.next_sent()
    assert sent.dispatch.inboxes == [INBOX, LATER]
    driven.accept(sent)
    assert _attached(driven) == []


def test_of_one_that_had_begun_who_comes_later_is_told_that_it_migrates() -> None:
    driven = Driven("w1", waiting_room={"max_wait_ms": 10_000})
    sent = driven.run()
    driven.emit(sent, 0, 1)
    driven.leave("w1")
    _again(driven)
    assert (driven.words(), driven.words(LATER)) == (["migrating"], ["migrating"])


# At a worker.


def test_where_it_runs_its_worker_is_to_tell_one_more() -> None:
    driven = in_state("running")
    _again(driven)
    assert _attached(driven) == [("w1", 1, LATER)]
    assert driven.words(LATER) == [], "the worker speaks"


def test_who_comes_while_a_worker_has_it_goes_along_to_the_next_one() -> None:
    driven = Driven("w1", "w2")
    driven.emit(driven.run(), 0, 1)
    _again(driven)
    driven.leave("w1")
    assert (driven.words(), driven.words(LATER)) == (["migrating"], ["migrating"])
    sent = driven.next_sent()
    assert (sent.worker, sent.dispatch.inboxes) == ("w2", [INBOX, LATER])


def test_the_same_inbox_again_is_told_the_stream_again() -> None:
    driven = in_state("running")
    _again(driven, INBOX)
    assert _attached(driven) == [("w1", 1, INBOX)]
    assert driven.known().inboxes == [INBOX]


def test_of_a_list_the_list_runner_tells_one_more() -> None:
    driven = in_state("delegated")
    _again(driven)
    assert driven.list_orders() == [("attach", LATER)]


# Ended.


@pytest.mark.parametrize("how", ["finish", "fail"])
def test_the_worker_that_said_the_end_says_it_again(how: str) -> None:
    driven = Driven("w1", "w2")
    asked = driven.ask()
    sent = driven.next_sent()
    driven.accept(sent)
    getattr(driven, how)(sent)
    driven.ask(inbox=LATER)
    assert _attached(driven) == [("w1", 1, LATER)]
    assert driven.words(LATER) == [] and driven.known() is asked


@pytest.mark.parametrize("how", ["gone", "started again"])
def test_where_that_worker_is_gone_the_same_is_served_again(how: str) -> None:
    driven = in_state("ended")
    seed = driven.known().seed
    if how == "gone":
        driven.leave("w1")
    else:
        driven.hear("w1", "joined", boot="b2")
    driven.ask(inbox=LATER)
    driven.pass_time(0.1)
    dispatch = driven.next_sent().dispatch
    assert (dispatch.attempt, dispatch.seed, dispatch.inboxes) == (2, seed, [LATER])
    assert dispatch.resume is None and driven.machine.active == 1


def test_what_ended_long_ago_is_served_anew_though_nothing_happened_since() -> None:
    driven = in_state("ended")
    driven.pass_time(30.1)
    driven.ask(inbox=LATER)
    assert driven.orders() == [] and driven.next_sent().dispatch.attempt == 1


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_an_end_that_was_said_from_here_is_said_again_to_who_asks(how: str) -> None:
    driven = in_state("queued", timeout_ms=2000, stream=False)
    if how == "cancelled":
        driven.cancel()
    else:
        driven.pass_time(2.1)
    (end,) = driven.told()
    driven.ask(inbox=LATER, timeout_ms=2000, stream=False)
    assert (driven.told(LATER), driven.told()) == ([end], [end])
    assert driven.sent() == [] and driven.machine.active == 0


@pytest.mark.parametrize("well", [True, False])
def test_of_a_list_that_has_ended_the_list_runner_says_all_again(well: bool) -> None:
    driven = in_state("delegated")
    origin = RequestId("r"), 0, None
    done = DoneMessage(*origin, Usage(1, 0, 1), Timings(0, 0, 0, 0))
    failed = FailedMessage(*origin, ErrorDetails.of("queue_full", "no room"))
    driven.on(PromptListEnded(KEY, done if well else failed))
    assert driven.state() == ("finished" if well else "failed")
    driven.ask(inbox=LATER, prompt=["x", "y"])
    assert (driven.list_orders(), driven.words(LATER)) == ([("attach", LATER)], [])


def test_what_is_told_late_of_an_end_changes_nothing() -> None:
    driven = in_state("fetching")
    driven.cancel()
    driven.on(SessionHistoryReceived(KEY, []))
    assert driven.words() == ["done"] and driven.sent() == []


# The same id for something else.


@pytest.mark.parametrize("state", get_args(State))
def test_the_id_of_another_request_is_refused_to_who_comes_with_it(state: State) -> None:
    driven = in_state(state)
    known = driven.known()
    driven.ask(inbox=LATER, prompt="not that")
    (end,) = driven.told(LATER)
    assert isinstance(end, FailedMessage)
    assert (end.error.code, end.error.param) == ("request_id_conflict", "request_id")
    assert (end.request_id, end.attempt) == ("r", 0)
    assert (driven.known(), driven.known().state, driven.words()) == (known, state, [])
    assert driven.orders() == [] and driven.list_orders() == [] and driven.sent() == []


def test_the_same_messages_in_another_session_are_another_request() -> None:
    driven = Driven("w1")
    driven.run(prompt=None, messages=[HELLO], session_id="s")
    driven.ask(inbox=LATER, prompt=None, messages=[HELLO], session_id="t")
    assert driven.words(LATER) == ["request_id_conflict"]


# Without the tokens that it was resumed from.


@pytest.mark.parametrize("ended", [False, True])
def test_who_does_not_have_the_tokens_that_it_was_resumed_from_gets_them(*, ended: bool) -> None:
    """No worker has them as text; the same seed gives them once more."""
    driven = Driven("w1")
    sent = driven.run(resume={"token_ids": [1, 2]})
    driven.emit(sent, 2, 3)
    if ended:
        driven.finish(sent)
    driven.ask(inbox=LATER)
    cancels = [(worker, order.verb) for worker, order in driven.orders()]
    assert cancels == ([] if ended else [("w1", "cancel")])
    driven.pass_time(0.01)
    again = driven.next_sent().dispatch
    assert (again.attempt, again.request.resume) == (2, None)
    assert set(again.inboxes) == ({LATER} if ended else {INBOX, LATER})


def test_who_has_the_tokens_that_it_was_resumed_from_is_attached() -> None:
    driven = Driven("w1")
    driven.run(resume={"token_ids": [1, 2]})
    driven.ask(inbox=LATER, resume={"token_ids": [1, 2, 3]})
    assert _attached(driven) == [("w1", 1, LATER)]


def test_who_lacks_these_tokens_gets_them_also_before_a_worker_has_the_request() -> None:
    driven = Driven("w1", term=2, turns_wait_s=1.0)
    driven.ask(session_id="s", resume={"token_ids": [1, 2]})
    driven.ask(inbox=LATER, session_id="s")
    driven.pass_time(1.1)
    dispatch = driven.next_sent().dispatch
    assert (dispatch.inboxes, dispatch.request.resume) == ([INBOX, LATER], None)


def test_a_new_run_is_still_cancelled_and_counts_what_failed_before() -> None:
    driven = Driven("w1")
    sent = driven.run(resume={"token_ids": [1, 2]})
    driven.known().failures.crashes = driven.known().failures.count = 1
    driven.cancel()
    driven.ask(inbox=LATER)
    assert driven.known().cancelled
    failures = driven.known().failures
    assert (failures.crashes, failures.count) == (1, 1)
    assert driven.known().inboxes[-1] == LATER and sent.dispatch.attempt == 1
