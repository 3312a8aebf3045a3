"""Turns of sessions: one after another, where the one before was served, with what was said
before."""

from typing import Any

import pytest

from controller.fleet.registry import WorkerGone
from controller.requests.events import LinkRestored
from controller.requests.instructions import SendControlOrder
from shared.ids import BootId, WorkerId
from shared.messages.control import ForgetSession, TellSession
from shared.messages.dispatch import Continuation
from shared.messages.stream import FailedMessage
from tests.controller.requests.claimed import key_of
from tests.controller.requests.driven import FULL, Driven
from tests.controller.requests.states import HELLO, HI
from tests.controller.requests.wire import Sent

AND = {"role": "user", "content": "And?"}


def _turn(driven: Driven, request_id: str, *messages: dict[str, str], **fields: Any) -> None:
    driven.ask(request_id, prompt=None, messages=list(messages), session_id="s", **fields)


def _served(driven: Driven, request_id: str = "before", *messages: dict[str, str]) -> Sent:
    """A whole turn."""
    _turn(driven, request_id, *(messages or (HELLO,)))
    driven.pass_time(0.01)
    sent = driven.next_sent()
    driven.accept(sent)
    driven.finish(sent)
    return sent


def _asked(driven: Driven) -> SendControlOrder:
    """The question for what was said before, the only order."""
    (order,) = driven.given()
    assert isinstance(order.order, TellSession)
    assert (order.order.session_id, order.order.term) == ("s", 1)
    return order


def _contents(sent: Sent) -> list[str]:
    return [str(message.content) for message in sent.dispatch.request.messages or []]


def _error(driven: Driven) -> tuple[str, str | None]:
    (end,) = [each for each in driven.told() if isinstance(each, FailedMessage)]
    return end.error.code, end.error.param


# One after another.


@pytest.mark.parametrize("how", ["finish", "fail", "cancel", "deadline"])
def test_a_turn_begins_when_the_one_before_has_ended(how: str) -> None:
    driven = Driven("w1")
    first = driven.run("a", session_id="s", timeout_ms=2000)
    for name in ("b", "c"):
        driven.ask(name, session_id="s", timeout_ms=60_000)
    assert driven.sent() == []
    match how:
        case "finish":
            driven.finish(first)
        case "fail":
            driven.fail(first)
        case "cancel":
            driven.cancel("a")
            assert driven.sent() == [], "its worker has not ended it"
            driven.finish(first)
        case _:
            driven.pass_time(7.0)
    driven.pass_time(0.01)
    second = driven.next_sent()
    assert second.dispatch.request_id == "b"
    driven.accept(second)
    driven.finish(second)
    driven.pass_time(0.01)
    assert driven.next_sent().dispatch.request_id == "c"


def test_a_turn_that_is_tried_again_keeps_its_turn() -> None:
    driven = Driven("w1", "w2")
    first = driven.run("a", session_id="s")
    driven.ask("b", session_id="s")
    driven.requeue(first)
    driven.pass_time(0.2)
    assert [sent.dispatch.request_id for sent in driven.sent()] == ["a"]


def test_a_turn_that_waits_may_go_without_a_trace() -> None:
    driven = Driven("w1")
    first = driven.run("a", session_id="s")
    for name in ("b", "c"):
        driven.ask(name, session_id="s")
    driven.cancel("b")
    driven.finish(first)
    driven.pass_time(0.01)
    assert driven.next_sent().dispatch.request_id == "c"


def test_other_sessions_and_requests_do_not_wait() -> None:
    driven = Driven("w1")
    driven.run("a", session_id="s")
    driven.run("b", session_id="t")
    driven.run("c")
    driven.run("d", affinity="s")


# Where the one before was served.


def test_the_next_turn_goes_where_the_one_before_was_served() -> None:
    driven = Driven("w1", "w2")
    driven.hear("w1", **FULL)
    assert _served(driven).worker == "w2"
    driven.hear("w1")
    _turn(driven, "r", HELLO, HI, AND)
    assert driven.next_sent().worker == "w2" and driven.given() == []


def test_who_served_it_before_forgets_what_is_out_of_date() -> None:
    driven = Driven("w1", "w2")
    assert _served(driven).worker == "w1"
    driven.hear("w1", **FULL)
    assert _served(driven, "r", HELLO, HI, AND).worker == "w2"
    ((worker, order),) = driven.orders()
    assert isinstance(order, ForgetSession) and worker == "w1"
    assert (order.client, order.session_id, order.drop, order.term) == ("ada", "s", False, 1)


def test_a_turn_that_failed_or_was_cancelled_moves_no_session() -> None:
    driven = Driven("w1", "w2")
    _served(driven)
    driven.hear("w1", **FULL)
    _turn(driven, "failed", HELLO, HI, AND)
    sent = driven.next_sent()
    driven.accept(sent)
    driven.fail(sent)
    _turn(driven, "cancelled", HELLO, HI, AND)
    driven.pass_time(0.01)
    sent = driven.next_sent()
    driven.accept(sent)
    driven.cancel("cancelled")
    driven.finish(sent)
    assert [order.verb for _, order in driven.orders()] == ["cancel"]
    driven.hear("w1")
    driven.pass_time(0.1)
    assert _served(driven, "r", HELLO, HI, AND).worker == "w1"


# What was said before.


def test_a_turn_that_comes_alone_gets_what_was_said_before() -> None:
    driven = Driven("w1", "w2")
    _served(driven)
    _turn(driven, "r", AND)
    order = _asked(driven)
    assert order.worker == "w1" and driven.sent() == []
    driven.answer(order, driven.reply("w1", said=[HELLO, HI]))
    sent = driven.next_sent()
    assert _contents(sent) == ["Hello", "Hi", "And?"]
    assert sent.dispatch.body_fingerprint == driven.known().fingerprint


def _runs_with_history(driven: Driven) -> Sent:
    """A turn that came alone, at `w1`."""
    _served(driven)
    _turn(driven, "r", AND)
    driven.answer(_asked(driven), driven.reply("w1", said=[HELLO, HI]))
    sent = driven.next_sent()
    driven.accept(sent)
    return sent


def test_another_attempt_has_the_whole_conversation_too() -> None:
    driven = Driven("w1", "w2")
    _runs_with_history(driven)
    driven.leave("w1")
    driven.pass_time(0.2)
    again = driven.next_sent()
    assert (again.worker, _contents(again)) == ("w2", ["Hello", "Hi", "And?"])


def test_where_its_worker_told_all_again_the_conversation_is_there_once() -> None:
    driven = Driven("w1", "w2")
    first = _runs_with_history(driven)
    driven.pass_time(2)
    driven.on(LinkRestored())
    driven.claimed("w1", key_of(first.dispatch, tokens=2))
    resume = Continuation(token_ids={0: [1, 2]}, text_sent={0: 2})
    now = first.dispatch.model_copy(update={"resume": resume})
    driven.answer(driven.last_order("contents"), driven.reply("w1", contents=[now]))
    driven.leave("w1")
    again = driven.next_sent()
    assert (again.worker, again.dispatch.resume) == ("w2", resume)
    assert _contents(again) == ["Hello", "Hi", "And?"]
    assert again.dispatch.body_fingerprint == driven.known().fingerprint


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([HELLO, HI, AND], {}),
        ([AND], {"history": "sent"}),
    ],
)
def test_a_turn_that_has_it_all_asks_nobody(
    messages: list[dict[str, str]], fields: dict[str, Any]
) -> None:
    driven = Driven("w1")
    _served(driven)
    _turn(driven, "r", *messages, **fields)
    assert driven.given() == [] and _contents(driven.next_sent()) == [
        message["content"] for message in messages
    ]


def test_the_first_turn_of_a_session_asks_nobody() -> None:
    driven = Driven("w1")
    _turn(driven, "r", HELLO)
    assert driven.given() == [] and _contents(driven.next_sent()) == ["Hello"]


@pytest.mark.parametrize("told", ["nothing", "that it does not know", "that nothing was said"])
def test_where_nobody_knows_what_was_said_the_client_is_to_send_it(told: str) -> None:
    driven = Driven("w1")
    _served(driven)
    _turn(driven, "r", AND, history="kept")
    said: list[dict[str, str]] | None = [] if told == "that nothing was said" else None
    driven.answer(_asked(driven), None if told == "nothing" else driven.reply("w1", said=said))
    assert _error(driven) == ("unknown_session", "session_id")
    assert driven.sent() == [] and driven.machine.active == 0


def test_a_session_that_is_to_be_continued_and_was_never_there_is_unknown() -> None:
    driven = Driven("w1")
    _turn(driven, "r", AND, history="kept")
    assert _error(driven) == ("unknown_session", "session_id") and driven.given() == []


def test_what_was_said_may_have_become_too_large() -> None:
    driven = Driven("w1", max_bytes=40_000)
    _served(driven)
    _turn(driven, "r", AND)
    long = {"role": "user", "content": "x" * 10_000}
    driven.answer(_asked(driven), driven.reply("w1", said=[long, HI]))
    assert _error(driven) == ("payload_too_large", "session_id")


def test_the_worker_may_say_that_it_is_too_large() -> None:
    driven = Driven("w1")
    _served(driven)
    _turn(driven, "r", AND)
    driven.answer(_asked(driven), driven.reply("w1", ok=False, code="payload_too_large"))
    assert _error(driven) == ("payload_too_large", "session_id")


def test_a_turn_that_fails_for_want_of_its_history_lets_the_next_one_begin() -> None:
    driven = Driven("w1")
    _served(driven)
    _turn(driven, "r", AND)
    _turn(driven, "next", HELLO, HI, AND)
    driven.answer(_asked(driven), None)
    driven.pass_time(0.01)
    assert driven.next_sent().dispatch.request_id == "next"


def test_a_turn_that_ended_meanwhile_needs_no_history() -> None:
    driven = Driven("w1")
    _served(driven)
    _turn(driven, "r", AND)
    order = _asked(driven)
    driven.cancel()
    driven.answer(order, driven.reply("w1", said=[HELLO, HI]))
    assert driven.sent() == [] and driven.words() == ["done"]


def test_where_the_worker_that_knows_it_is_gone_nobody_answers() -> None:
    driven = Driven("w1", "w2")
    _served(driven)
    _turn(driven, "r", AND)
    order = _asked(driven)
    driven.on(WorkerGone(WorkerId("w1"), BootId("b1"), "it is gone"))
    driven.answer(order, None)
    assert _error(driven) == ("unknown_session", "session_id")
