"""What workers have of requests, told to the leader that claims them, by value."""

import pytest

from controller.requests.events import EndRequests, LinkRestored
from controller.requests.instructions import SendControlOrder
from shared.messages.control import AttachInbox, CancelRequest, ClaimWorker
from shared.messages.dispatch import Continuation
from shared.messages.stream import ErrorDetails
from tests.controller.requests.claimed import (
    ALONE,
    HAD,
    failure_of,
    key_of,
    old_dispatch,
    sent_before,
    taken_over,
    tell,
    turn_with_history,
    wanted,
)
from tests.controller.requests.driven import INBOX, LATER, LEADER, LEADER_BOOT, Driven
from tests.controller.requests.states import in_state

# Keys, then contents.


def test_a_worker_tells_its_keys_first_and_then_what_is_not_known() -> None:
    driven = Driven(term=2, unclaimed=["w1"])
    (claim,) = driven.new(SendControlOrder)
    assert (claim.worker, claim.order) == (
        "w1",
        ClaimWorker(term=2, controller=LEADER, boot_id=LEADER_BOOT),
    )
    had = old_dispatch("r", 3, 1, 2)
    driven.claimed("w1", key_of(had))
    assert (driven.state(), driven.known().worker, driven.known().tokens) == ("running", "w1", 2)
    (asked,) = driven.given()
    assert wanted(asked) == [("r", 3)]
    driven.answer(asked, driven.reply("w1", contents=[had]))
    known = driven.known()
    assert (known.contents, known.inboxes, known.seed) == (had.request, [HAD], 5)
    assert known.progress.tokens == {0: [1, 2]}
    assert (driven.machine.active, driven.machine.metrics.adoptions) == (1, 1)
    assert driven.words(HAD) == [], "its stream goes on"
    driven.finish(sent_before(had))
    assert (driven.state(), driven.machine.active) == ("finished", 0)


def test_contents_that_do_not_fit_into_a_message_are_asked_for_again() -> None:
    had = [old_dispatch(name) for name in "abc"]
    driven = Driven(term=2, unclaimed=["w1"])
    driven.claimed("w1", *map(key_of, had))
    for number, each in enumerate(had):
        (asked,) = driven.given()
        assert wanted(asked) == [(one.request_id, 3) for one in had[number:]]
        driven.answer(asked, driven.reply("w1", contents=[each]))
    assert driven.given() == []
    assert [driven.known(name).seed for name in "abc"] == [5, 5, 5]


def test_what_has_ended_meanwhile_is_not_among_the_contents_and_is_forgotten() -> None:
    had = [old_dispatch(name) for name in "abc"]
    driven = Driven(term=2, unclaimed=["w1"])
    driven.claimed("w1", *map(key_of, had))
    (asked,) = driven.given()
    driven.answer(asked, driven.reply("w1", contents=[had[1]]))
    assert [driven.state(name) for name in "abc"] == ["unknown", "running", "running"]
    (asked,) = driven.given()
    assert wanted(asked) == [("c", 3)]
    driven.answer(asked, driven.reply("w1", contents=[]))
    assert (driven.state("c"), driven.machine.active) == ("unknown", 1)


@pytest.mark.parametrize("answers", [False, True])
def test_contents_that_nobody_tells_are_asked_for_again_after_some_quiet(answers: bool) -> None:
    driven = Driven(term=2, unclaimed=["w1"])
    had = old_dispatch()
    driven.claimed("w1", key_of(had))
    (asked,) = driven.given()
    driven.answer(asked, driven.reply("w1", ok=False, code="internal_error") if answers else None)
    driven.new(SendControlOrder)
    driven.pass_time(3.1)
    (claim,) = driven.new(SendControlOrder)
    assert claim.order.verb == "claim"
    driven.claimed("w1", key_of(had))
    assert wanted(driven.last_order("contents")) == [("r", 3)]


def test_what_is_told_of_it_before_its_contents_are_there_is_not_lost() -> None:
    driven = Driven("w2", term=2, unclaimed=["w1"])
    had = old_dispatch("r", 3, 1)
    driven.claimed("w1", key_of(had))
    sent = sent_before(had)
    driven.emit(sent, 1, 2)
    driven.requeue(sent)
    assert driven.state() == "running" and driven.sent() == []
    more = old_dispatch("r", 3, 1, 2)
    driven.answer(driven.last_order("contents"), driven.reply("w1", contents=[more]))
    dispatch = driven.next_sent().dispatch
    assert dispatch.attempt == 1001
    assert dispatch.resume is not None and dispatch.resume.token_ids == {0: [1, 2]}


@pytest.mark.parametrize("what", ["gone", "its end is asked for"])
def test_of_what_only_the_key_is_known_nothing_is_left_when_it_cannot_go_on(what: str) -> None:
    driven = Driven("w2", term=2, unclaimed=["w1"])
    driven.claimed("w1", key_of(old_dispatch()))
    if what == "gone":
        driven.leave("w1")
    else:
        driven.on(EndRequests(None, ErrorDetails.of("draining", "it shut down")))
    assert (driven.state(), driven.machine.active, driven.sent()) == ("unknown", 0, [])
    driven.ask()
    assert driven.next_sent().dispatch.attempt == 1001


def test_who_asks_again_is_attached_before_the_contents_are_there() -> None:
    driven = Driven(term=2, unclaimed=["w1"])
    driven.claimed("w1", key_of(old_dispatch()))
    driven.given()
    driven.ask(inbox=LATER)
    ((worker, order),) = driven.orders()
    assert isinstance(order, AttachInbox) and worker == "w1"
    assert (order.request_id, order.attempt, order.inbox, order.term) == ("r", 3, LATER, 2)


def test_the_id_of_what_a_worker_has_is_no_other_requests() -> None:
    driven = Driven(term=2, unclaimed=["w1"])
    driven.claimed("w1", key_of(old_dispatch()))
    driven.ask(inbox=LATER, prompt="not that")
    assert driven.words(LATER) == ["request_id_conflict"]


def test_what_is_cancelled_before_its_contents_are_there_is_cancelled_at_its_worker() -> None:
    driven = Driven(term=2, unclaimed=["w1"])
    driven.claimed("w1", key_of(old_dispatch()))
    driven.given()
    driven.cancel()
    ((worker, order),) = driven.orders()
    assert isinstance(order, CancelRequest)
    assert (worker, order.attempt, order.silent) == ("w1", 3, False)


def test_what_a_worker_told_and_was_missed_is_asked_for() -> None:
    driven = Driven("w1")
    sent = driven.run()
    driven.emit(sent, 0, 1)
    driven.pass_time(1)
    before = driven.last_order("claim")
    driven.emit(sent, 2, 3)
    assert driven.last_order("claim") is not before
    had = sent.dispatch.model_copy(
        update={"resume": Continuation(token_ids={0: [1, 2, 3]}, text_sent={0: 3})}
    )
    tell(driven, "w1", had)
    driven.emit(sent, 3, 4)
    driven.requeue(sent)
    driven.join("w2")
    dispatch = driven.next_sent().dispatch
    assert dispatch.resume is not None and dispatch.resume.token_ids == {0: [1, 2, 3, 4]}


def test_what_its_worker_does_not_have_any_more_runs_again_under_another_number() -> None:
    """Its client may have heard some of the first attempt."""
    driven = in_state("lost")
    assert (driven.state(), driven.machine.active) == ("unknown", 0)
    driven.ask(inbox=LATER)
    dispatch = driven.next_sent().dispatch
    assert (dispatch.attempt, dispatch.inboxes) == (2, [LATER])


def test_the_next_turn_waits_a_moment_for_a_lost_one_to_be_asked_again() -> None:
    for asked_again in (True, False):
        driven = in_state("lost", session_id="s")
        driven.ask("next", session_id="s")
        driven.pass_time(4.0)
        assert driven.sent() == []
        if asked_again:
            driven.ask(session_id="s", inbox=LATER)
            first = driven.next_sent()
            assert first.dispatch.request_id == "r"
            driven.accept(first)
            driven.pass_time(9.0)
            assert driven.sent() == []
            driven.finish(first)
        driven.pass_time(0.6)
        assert driven.next_sent().dispatch.request_id == "next"


def test_turns_wait_a_moment_where_a_worker_is_gone_that_had_not_told() -> None:
    """An earlier turn that was lost with it comes with the tokens that its client had."""
    driven = Driven("w2", term=2, unclaimed=["w1"])
    driven.ask("next", session_id="s")
    driven.leave("w1")
    driven.ask("alone")
    alone = driven.next_sent()
    assert alone.dispatch.request_id == "alone"
    driven.accept(alone)
    driven.pass_time(3.5)
    driven.ask("first", session_id="s", resume={"token_ids": [1, 2]})
    assert driven.sent() == []
    driven.pass_time(1.1)
    first = driven.next_sent()
    assert first.dispatch.request_id == "first"
    driven.accept(first)
    driven.pass_time(1.0)
    assert driven.sent() == []
    driven.finish(first)
    driven.pass_time(0.1)
    assert driven.next_sent().dispatch.request_id == "next"


def test_what_its_worker_has_after_all_is_taken_over_again() -> None:
    driven = in_state("lost")
    had = old_dispatch("r", 1)
    driven.pass_time(2)
    driven.on(LinkRestored())
    driven.claimed("w1", key_of(had))
    assert [order.verb for _, order in driven.orders()] == ["attach", "contents"]
    driven.answer(driven.last_order("contents", "w1"), driven.reply("w1", contents=[had]))
    driven.emit(sent_before(had), 0, 1)
    assert (driven.state(), driven.known().tokens) == ("running", 1)


def test_contents_are_asked_for_only_where_something_is_missing() -> None:
    """What its client had before counts at the worker, too."""
    driven = Driven("w1")
    sent = driven.run(resume={"token_ids": [7, 8, 9]})
    driven.emit(sent, 3, 1)
    driven.pass_time(5)
    driven.orders()
    driven.claimed("w1", key_of(sent.dispatch, tokens=4))
    assert driven.orders() == []
    driven.pass_time(5)
    driven.claimed("w1", key_of(sent.dispatch, tokens=5))
    assert [order.verb for _, order in driven.orders()] == ["contents"]


# What goes on.


def test_what_was_taken_over_goes_on_elsewhere_when_its_worker_is_gone() -> None:
    driven = taken_over(old_dispatch("r", 3, 1, 2))
    driven.leave("w1")
    sent = driven.next_sent()
    assert (sent.worker, sent.dispatch.attempt, sent.dispatch.inboxes) == ("w2", 1001, [HAD])
    assert sent.dispatch.resume is not None
    assert sent.dispatch.resume.token_ids == {0: [1, 2]}
    assert sent.dispatch.elapsed_ms >= 1000
    assert driven.words(HAD) == ["migrating"]


def test_its_attempts_are_those_of_this_term() -> None:
    driven = Driven("w2", "w3", term=3, unclaimed=["w1"])
    tell(driven, "w1", old_dispatch("r", 1007, 1))
    driven.leave("w1")
    first = driven.next_sent()
    driven.reject(first)
    assert [first.dispatch.attempt, driven.next_sent().dispatch.attempt] == [2001, 2002]


def test_a_turn_with_its_history_is_still_what_its_client_asked_for() -> None:
    had = turn_with_history()
    driven = taken_over(had)
    driven.ask(inbox=LATER, **ALONE)
    ((worker, order),) = driven.orders()
    assert isinstance(order, AttachInbox)
    assert (worker, order.inbox, driven.words(LATER)) == ("w1", LATER, [])
    driven.leave("w1")
    driven.pass_time(0.2)
    dispatch = driven.next_sent().dispatch
    assert (dispatch.fingerprint, dispatch.inboxes) == (had.fingerprint, [HAD, LATER])
    assert dispatch.request.messages == had.request.messages


def test_what_failed_before_counts_still() -> None:
    driven = Driven("w2", term=2, unclaimed=["w1"])
    had = old_dispatch()
    driven.claimed("w1", key_of(had, retries=2, migrations=1, crashes=1))
    driven.answer(driven.last_order("contents"), driven.reply("w1", contents=[had]))
    driven.requeue(sent_before(had), "engine_crashed", suspect=True)
    assert driven.words(HAD) == ["request_crashes_engine"]


def test_its_deadline_stays_what_it_was() -> None:
    driven = taken_over(old_dispatch(timeout_ms=4000, stream=False))
    driven.pass_time(7.9)  # three seconds were left, and its worker gets five more
    assert driven.words(HAD) == []
    driven.pass_time(0.2)
    assert driven.words(HAD) == ["deadline_exceeded"]


def test_a_turn_that_runs_is_before_those_that_wait() -> None:
    driven = Driven("w2", term=2, unclaimed=["w1"])
    had = old_dispatch("before", session_id="s")
    driven.ask(session_id="s")
    assert driven.state() == "accepted"
    tell(driven, "w1", had)
    driven.pass_time(0.1)
    assert driven.sent() == []
    driven.finish(sent_before(had))
    driven.pass_time(0.1)
    assert driven.next_sent().dispatch.request_id == "r"


# Several attempts.


@pytest.mark.parametrize("order", ["older first", "newer first"])
def test_the_higher_attempt_is_the_one_that_counts(order: str) -> None:
    driven = Driven(term=2, unclaimed=["w1", "w2"])
    older, newer = ("w1", old_dispatch("r", 3, 1)), ("w2", old_dispatch("r", 4, 1, 2))
    for worker, had in (older, newer) if order == "older first" else (newer, older):
        driven.claimed(worker, key_of(had))
    assert (driven.known().worker, driven.known().attempt) == ("w2", 4)
    cancels = [(worker, each) for worker, each in driven.orders() if each.verb == "cancel"]
    ((worker, cancel),) = cancels
    assert isinstance(cancel, CancelRequest)
    assert (worker, cancel.attempt, cancel.silent) == ("w1", 3, True)
    assert driven.machine.active == 1


@pytest.mark.parametrize("state", ["finished", "failed", "returned"])
def test_an_older_attempt_that_has_ended_is_left_as_it_is(state: str) -> None:
    driven = Driven(term=2, unclaimed=["w1", "w2"])
    driven.claimed("w2", key_of(old_dispatch("r", 4)))
    driven.given()
    driven.claimed("w1", key_of(old_dispatch("r", 3), state))
    assert driven.orders() == [] and driven.known().worker == "w2"


# Ended, or gone back.


@pytest.mark.parametrize("state", ["finished", "failed"])
def test_what_has_ended_at_a_worker_is_told_again_by_that(state: str) -> None:
    driven = Driven(term=2, unclaimed=["w1"])
    driven.claimed("w1", key_of(old_dispatch("r", 3, 1, 2), state))
    assert (driven.state(), driven.known().tokens, driven.given()) == (state, 2, [])
    assert (driven.machine.active, driven.machine.metrics.adoptions) == (0, 0)
    driven.ask(inbox=LATER)
    ((worker, order),) = driven.orders()
    assert isinstance(order, AttachInbox)
    assert (worker, order.attempt, order.inbox) == ("w1", 3, LATER)


def test_where_that_worker_is_gone_it_is_served_again() -> None:
    driven = Driven("w2", term=2, unclaimed=["w1"])
    driven.claimed("w1", key_of(old_dispatch(), "finished"))
    driven.leave("w1")
    driven.ask()
    dispatch = driven.next_sent().dispatch
    assert (dispatch.attempt, dispatch.seed, dispatch.inboxes) == (1001, 5, [INBOX])


@pytest.mark.parametrize("state", ["running", "finished", "failed"])
def test_who_asked_again_already_hears_it_from_the_worker(state: str) -> None:
    driven = Driven(term=2, unclaimed=["w1"])
    driven.ask(inbox=LATER)
    assert driven.sent() == []
    driven.claimed("w1", key_of(old_dispatch(), state))
    attached = [(worker, each) for worker, each in driven.orders() if each.verb == "attach"]
    ((worker, order),) = attached
    assert isinstance(order, AttachInbox)
    assert (worker, order.attempt, order.inbox) == ("w1", 3, LATER)
    driven.pass_time(0.1)
    assert driven.sent() == [] and driven.state() == state


def test_a_cancel_that_came_before_is_not_lost() -> None:
    driven = Driven(term=2, unclaimed=["w1"])
    driven.ask(inbox=LATER)
    driven.known().cancelled = True
    tell(driven, "w1", old_dispatch())
    assert "cancel" in [order.verb for _, order in driven.orders()]


def test_what_a_worker_gave_back_that_nobody_heard_goes_on() -> None:
    driven = Driven("w2", term=2, unclaimed=["w1"])
    had = old_dispatch("r", 3, 1, 2)
    driven.claimed("w1", key_of(had, "returned", failure=failure_of(had)))
    (asked,) = driven.given()
    assert wanted(asked) == [("r", 3)] and driven.sent() == []
    driven.answer(asked, driven.reply("w1", contents=[had]))
    dispatch = driven.next_sent().dispatch
    assert (dispatch.attempt, dispatch.migrations) == (1001, 1)
    ((worker, order),) = driven.orders()
    assert isinstance(order, CancelRequest) and (worker, order.silent) == ("w1", True)
