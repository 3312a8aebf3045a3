"""A leader that leaves: what no worker has goes to the next one."""

from collections.abc import Sequence

import pytest

from controller.requests.events import RequestsTransferred, ShutdownBegan
from controller.requests.request import State, TrackedRequest
from controller.requests.restored_request import transferred_request
from shared.ids import RequestId
from shared.messages.dispatch import Dispatch
from tests.controller.requests.claimed import ALONE, sent_before, taken_over, turn_with_history
from tests.controller.requests.driven import FULL, INBOX, LATER, Driven
from tests.controller.requests.states import NOT_AT_A_WORKER, in_state
from tests.controller.values import DEMO


def _ids(requests: Sequence[Dispatch]) -> list[str]:
    return [each.request_id for each in requests]


def _take(driven: Driven, requests: Sequence[Dispatch]) -> None:
    """The next leader is given them."""
    driven.on(
        RequestsTransferred([transferred_request(each, [DEMO], driven.now) for each in requests])
    )


def test_nothing_new_goes_to_a_worker_and_its_client_is_told_why() -> None:
    driven = Driven("w1")
    driven.on(ShutdownBegan())
    driven.ask()
    driven.pass_time(0.6)
    assert (driven.sent(), driven.words()) == ([], ["leader_change"])
    assert _ids(driven.machine.transferable(driven.now)) == ["r"]


def test_what_waits_for_a_worker_does_so_at_the_next_leader() -> None:
    driven = Driven()
    driven.join("w1", **FULL)
    driven.ask()
    driven.on(ShutdownBegan())
    driven.hear("w1")
    driven.pass_time(1)
    assert driven.sent() == [] and _ids(driven.machine.transferable(driven.now)) == ["r"]


def test_a_look_for_a_worker_that_was_due_already_is_not_made() -> None:
    driven = Driven()
    driven.join("w1", **FULL)
    driven.ask()
    driven.hear("w1")
    driven.on(ShutdownBegan())
    driven.pass_time(1)
    assert driven.sent() == [] and _ids(driven.machine.transferable(driven.now)) == ["r"]


def test_what_was_said_before_comes_too_late_to_begin_here() -> None:
    driven = in_state("fetching")
    driven.on(ShutdownBegan())
    driven.ask("other")
    order = driven.last_order("session")
    driven.answer(order, driven.reply("w1", said=[{"role": "user", "content": "Hello"}]))
    driven.pass_time(1)
    assert driven.sent() == [] and _ids(driven.machine.transferable(driven.now)) == ["r", "other"]


def test_a_turn_whose_time_comes_begins_at_the_next_leader() -> None:
    driven = Driven("w1")
    first = driven.run("before", session_id="s")
    driven.ask(session_id="s")
    driven.on(ShutdownBegan())
    driven.finish(first)
    driven.pass_time(1)
    assert driven.sent() == [] and _ids(driven.machine.transferable(driven.now)) == ["r"]


def test_what_had_a_worker_goes_on_in_time() -> None:
    driven = Driven("w1", "w2")
    sent = driven.run()
    driven.on(ShutdownBegan())
    driven.requeue(sent)
    driven.pass_time(0.2)
    assert driven.next_sent().dispatch.attempt == 2


@pytest.mark.parametrize("state", NOT_AT_A_WORKER)
def test_what_no_worker_has_is_given_as_it_is(state: State) -> None:
    driven = in_state(state, timeout_ms=100_000)
    driven.pass_time(1)
    driven.on(ShutdownBegan())
    known = driven.known()
    (told,) = [each for each in driven.machine.transferable(driven.now) if each.request_id == "r"]
    assert (told.inboxes, told.seed, told.attempt) == ([INBOX], 5, known.attempt)
    assert told.elapsed_ms == pytest.approx(known.elapsed_ms(driven.now), abs=0.001)
    assert told.request == known.contents.model_copy(update={"request_id": RequestId("r")})


@pytest.mark.parametrize("state", ["offered", "running", "ended"])
def test_what_a_worker_has_the_next_leader_hears_of_from_that(state: State) -> None:
    assert in_state(state).machine.transferable(0.0) == []


def test_a_list_is_given_whole_and_its_parts_are_not() -> None:
    driven = in_state("delegated")
    driven.hear("w1", **FULL)
    driven.hear("w2", **FULL)
    driven.ask("part")
    driven.known("part").part_of = RequestId("r")
    assert _ids(driven.machine.transferable(driven.now)) == ["r"]


# The next leader.


def test_the_next_leader_serves_them_in_the_order_in_which_they_came() -> None:
    first = Driven()
    for name, fields in (("a", {}), ("b", {"session_id": "s"}), ("c", {"session_id": "s"})):
        first.ask(name, **fields)
    first.pass_time(2)
    second = Driven("w1", term=2)
    _take(second, first.machine.transferable(first.now))
    second.pass_time(0.01)
    sent = second.sent()
    assert [(each.dispatch.request_id, each.dispatch.attempt) for each in sent] == [
        ("a", 1001),
        ("b", 1001),
    ]
    assert sent[0].dispatch.elapsed_ms == pytest.approx(2000)
    second.accept(sent[1])
    second.finish(sent[1])
    second.pass_time(0.01)
    assert second.next_sent().dispatch.request_id == "c"


def test_its_deadline_stays() -> None:
    first = Driven()
    first.ask(timeout_ms=3000)
    first.pass_time(2)
    second = Driven(term=2)
    _take(second, first.machine.transferable(first.now))
    second.pass_time(0.9)
    assert "deadline_exceeded" not in second.words()
    second.pass_time(0.2)
    assert second.words()[-1] == "deadline_exceeded"


def test_what_had_begun_goes_on_there() -> None:
    first = Driven("w1")
    sent = first.run()
    first.emit(sent, 0, 1, 2)
    first.on(ShutdownBegan())
    first.leave("w1")
    second = Driven("w2", term=2)
    _take(second, first.machine.transferable(first.now))
    dispatch = second.next_sent().dispatch
    assert dispatch.resume is not None and dispatch.resume.token_ids == {0: [1, 2]}
    assert (dispatch.migrations, dispatch.attempt) == (1, 1001)


def test_given_again_they_are_the_same_requests() -> None:
    first = Driven()
    first.ask()
    given = first.machine.transferable(first.now)
    second = Driven(term=2)
    for _ in range(2):
        _take(second, given)
    assert (second.machine.active, second.known().inboxes) == (1, [INBOX])


def test_who_has_asked_the_next_leader_already_is_joined() -> None:
    first = Driven()
    first.ask()
    second = Driven(term=2)
    second.ask(inbox=LATER)
    _take(second, first.machine.transferable(first.now))
    assert second.machine.active == 1 and set(second.known().inboxes) == {INBOX, LATER}


def test_what_a_worker_has_already_is_not_served_twice() -> None:
    first = Driven("w1")
    sent = first.run()
    first.requeue(sent)
    (given,) = first.machine.transferable(first.now)
    second = Driven("w1", term=2)
    running = second.run()
    _take(second, [given])
    assert second.sent() == [] and second.known().worker == running.worker


def test_a_turn_with_its_history_is_given_with_it() -> None:
    second = taken_over(had := turn_with_history())
    second.pass_time(2)
    second.requeue(sent_before(had))
    third = Driven("w3", term=3)
    third.finish(third.run("before", session_id="s"))
    _take(third, second.machine.transferable(second.now))
    assert third.orders() == [], "nobody is asked what was said before"
    dispatch = third.next_sent().dispatch
    assert dispatch.request.messages == had.request.messages
    assert dispatch.fingerprint == had.fingerprint
    third.ask(inbox=LATER, **ALONE)
    assert third.words(LATER) == ["dispatching"], "it is the same request"


@pytest.mark.parametrize("state", ["waiting", "offered", "running", "delegated"])
def test_all_who_listened_there_listen_here(state: State) -> None:
    driven = in_state(state)
    (given,) = _given(driven.known(), [LATER, "_INBOX.last"])
    _take(driven, [given])
    attached = [(order.verb, getattr(order, "inbox", "")) for _, order in driven.orders()]
    expected = [("attach", LATER), ("attach", "_INBOX.last")]
    assert attached == (expected if state == "running" else [])
    assert driven.list_orders() == (expected if state == "delegated" else [])
    assert driven.known().inboxes == [INBOX, LATER, "_INBOX.last"]
    if state in ("waiting", "delegated"):
        (given,) = driven.machine.transferable(driven.now)
        assert given.inboxes == [INBOX, LATER, "_INBOX.last"]


def _given(known: TrackedRequest, inboxes: list[str]) -> Sequence[Dispatch]:
    """The same request, as another leader has it."""
    return [known.transfer(known.arrived_at).model_copy(update={"inboxes": inboxes})]
