"""Requests from their arrival to their end, by value: events in, instructions out."""

import pytest

from controller.requests.events import EndRequests, StatusOrCancelReceived
from controller.requests.request import State
from shared.ids import RequestId
from shared.messages.stream import ErrorDetails, FailedMessage
from tests.controller.requests.driven import FULL, INBOX, LEADER, Driven
from tests.controller.requests.states import in_state
from tests.controller.values import ADA, DEMO, request

DRAINING = ErrorDetails.of("draining", "it shut down")


# From its arrival to its end.


def test_a_request_goes_to_a_worker_which_tells_its_client_all_else() -> None:
    driven = Driven("w1")
    asked = driven.ask()
    sent = driven.next_sent()
    assert (sent.worker, sent.batch.owner, sent.batch.term) == ("w1", LEADER, 1)
    dispatch = sent.dispatch
    assert (dispatch.request_id, dispatch.attempt, dispatch.model) == ("r", 1, DEMO)
    assert (dispatch.seed, dispatch.inboxes, dispatch.request) == (5, [INBOX], asked.contents)
    driven.accept(sent)
    driven.emit(sent, 0, 1, 2)
    driven.finish(sent)
    assert driven.words() == [] and driven.orders() == []
    assert (driven.machine.active, driven.view("w1").load) == (0, 0)


def test_how_it_stands_is_told_who_asks() -> None:
    driven = Driven("w1")
    assert _state(driven) == ("unknown", None, 0, 0)
    driven.ask()
    assert _state(driven) == ("dispatching", "w1", 1, 0)
    sent = driven.next_sent()
    driven.accept(sent)
    driven.emit(sent, 0, 1, 2)
    assert _state(driven) == ("running", "w1", 1, 2)
    driven.finish(sent)
    assert _state(driven) == ("finished", "w1", 1, 2)
    driven.run("other")
    driven.pass_time(29)
    assert _state(driven) == ("finished", "w1", 1, 2)
    driven.pass_time(4)
    assert _state(driven) == ("unknown", None, 0, 0)


@pytest.mark.parametrize("state", ["offered", "running"])
def test_of_what_was_ended_from_here_no_worker_is_told(state: State) -> None:
    driven = in_state(state)
    driven.on(EndRequests(None, DRAINING))
    assert _state(driven) == ("failed", None, 2, 0), "the worker may have ended it as attempt 1"


def test_what_a_worker_fails_has_failed_and_its_client_knows() -> None:
    driven = Driven("w1", "w2")
    driven.fail(driven.run(), "context_length_exceeded")
    assert _state(driven)[0] == "failed"
    assert driven.words() == [] and driven.sent() == []
    metrics = driven.machine.metrics
    assert (metrics.accepted, metrics.completed, metrics.rejected, metrics.failed) == (1, 0, 1, 0)


def test_each_end_is_counted_once() -> None:
    driven = Driven("w1")
    driven.finish(driven.run("a"))
    driven.fail(driven.run("b"), "engine_crashed")
    driven.fail(driven.run("c"), "invalid_request")
    cancelled = driven.run("d")
    driven.cancel("d")
    driven.finish(cancelled)
    metrics = driven.machine.metrics
    assert (metrics.accepted, metrics.completed, metrics.rejected, metrics.failed) == (4, 2, 1, 1)


def test_tokens_that_are_heard_before_the_answer_say_that_the_worker_has_it() -> None:
    driven = Driven("w1")
    driven.ask()
    sent = driven.next_sent()
    driven.emit(sent, 0, 1)
    assert driven.known().state == "running"
    driven.accept(sent)
    driven.emit(sent, 1, 2)
    assert driven.known().progress.tokens == {0: [1, 2]}


@pytest.mark.parametrize("name", ["emit", "finish", "fail", "requeue"])
def test_what_is_told_of_an_attempt_that_was_given_up_means_nothing(name: str) -> None:
    driven = Driven("w1", "w2")
    first = driven.run()
    driven.requeue(first)
    driven.pass_time(0.2)
    second = driven.next_sent()
    driven.accept(second)
    getattr(driven, name)(first, *([0, 9] if name == "emit" else []))
    assert (driven.known().state, driven.known().worker) == ("running", second.worker)
    assert not driven.known().started


def test_attempts_are_counted_from_the_term_on() -> None:
    driven = Driven("w1", term=3)
    assert driven.run("a").dispatch.attempt == 2001
    driven.hear("w1", **FULL)
    driven.ask("b")
    driven.pass_time(5.1)
    (end,) = [message for message in driven.told() if isinstance(message, FailedMessage)]
    assert (end.request_id, end.attempt, end.worker) == ("b", 2000, None)


# How many.


def test_where_the_server_authenticates_a_client_has_so_many_requests_at_once() -> None:
    driven = Driven("w1", strict=True, most_per_client=2)
    first = driven.run("a")
    driven.run("b")
    driven.ask("c", inbox="_INBOX.c")
    (end,) = driven.told("_INBOX.c")
    assert isinstance(end, FailedMessage) and (end.attempt, end.error.retry_after_ms) == (0, 1000)
    assert (end.error.code, driven.state("c")) == ("rate_limit_exceeded", "unknown")
    driven.ask("b", inbox="_INBOX.c")  # it is no new one
    assert [order.verb for _, order in driven.orders()] == ["attach"]
    driven.finish(first)
    driven.run("c")


def test_elsewhere_a_client_has_as_many_as_it_likes() -> None:
    driven = Driven("w1", strict=False, most_per_client=1)
    for name in "abc":
        driven.run(name)
    assert driven.machine.active == 3


# Ended from here.


def test_a_controller_without_a_successor_ends_all() -> None:
    driven = in_state("queued")
    driven.ask("list", prompt=["x", "y"], inbox="_INBOX.list")
    driven.hear("w1", max_queue_depth=0)
    driven.run("at-a-worker", priority="high", prompt="y")
    driven.list_orders()
    driven.on(EndRequests(None, DRAINING))
    assert driven.words() == ["draining"] * 2
    ((worker, order),) = driven.orders()
    assert (worker, order.verb, getattr(order, "silent", None)) == ("w1", "cancel", True)
    assert (driven.list_orders(), driven.words("_INBOX.list")) == ([("fail", "")], [])
    assert driven.state("at-a-worker") == "failed"
    assert driven.view("w1").load == 0


def test_one_of_them_can_be_ended_alone() -> None:
    driven = Driven("w1")
    for name in "ab":
        driven.run(name)
    driven.on(EndRequests((ADA, RequestId("a")), DRAINING))
    assert (driven.state("a"), driven.state("b")) == ("failed", "running")


# Settings.


def test_other_settings_hold_from_now_on() -> None:
    driven = Driven("w1", "w2", waiting_room={"max_wait_ms": 9000})
    first = driven.run("a")
    driven.configure(most_per_client=2, retry={"enabled": False})
    driven.run("b")
    driven.ask("c", inbox="_INBOX.c")
    assert driven.words("_INBOX.c") == ["rate_limit_exceeded"]
    driven.requeue(first)
    assert driven.state("a") == "failed"
    for name in ("w1", "w2"):
        driven.hear(name, **FULL)
    driven.ask("d", inbox="_INBOX.d", stream=False)
    driven.pass_time(5.1)
    assert driven.words("_INBOX.d") == ["queue_full"], "five seconds are the default"


# Why it went where it went.


def test_who_asks_for_it_is_told_why_a_worker_was_chosen() -> None:
    driven = Driven("w1", "w2")
    route = driven.run(debug=True).dispatch.route
    assert route is not None and (route.controller, route.worker) == (LEADER, "w1")
    assert driven.run("plain").dispatch.route is None


def test_who_asks_for_it_is_told_why_there_was_no_worker() -> None:
    driven = Driven(waiting_room={"enabled": False})
    driven.join("w1", **FULL)
    driven.ask(debug=True)
    (end,) = driven.told()
    assert isinstance(end, FailedMessage) and end.route is not None
    assert [each["worker"] for each in end.route["out"]] == ["w1"]


def test_where_a_request_would_go_is_known_without_serving_it() -> None:
    driven = Driven("w1", "w2", routing={"policy": "round-robin"})
    asked = request("other")
    workers = [driven.machine.router.explain(asked, driven.now).worker for _ in range(2)]
    assert workers == ["w1", "w1"], "nobody's turn is over by that"
    for name in ("w1", "w2"):
        driven.hear(name, **FULL)
    route = driven.machine.router.explain(asked, driven.now)
    assert (route.worker, [each.code for each in route.out]) == (None, ["queue_full"] * 2)
    assert (driven.sent(), driven.machine.active) == ([], 0)


# Parts of lists.


def test_a_part_of_a_list_is_its_runners_to_cancel() -> None:
    driven = Driven("w1")
    sent = driven.run()
    driven.known().part_of = RequestId("whole")
    driven.cancel()
    assert driven.orders() == []
    assert driven.state() == "running", "workers may ask for it"
    driven.on(StatusOrCancelReceived((ADA, RequestId("r")), "", cancel=True, of_part=True))
    assert [order.verb for _, order in driven.orders()] == ["cancel"]
    assert driven.machine.active == 0, "the list counts"
    driven.finish(sent)


@pytest.mark.parametrize(("n", "state"), [(8, "dispatching"), (9, "running")])
def test_more_choices_than_any_worker_decodes_at_once_are_served_as_a_list(
    n: int, state: str
) -> None:
    driven = Driven()
    driven.join("w1", max_batch_size=2)
    driven.join("w2", max_batch_size=8)
    driven.ask(n=n)
    assert (driven.state(), len(driven.list_orders())) == (state, n == 9)


def test_where_no_worker_is_there_choices_wait_together() -> None:
    driven = Driven()
    driven.ask(n=9)
    assert (driven.list_orders(), driven.machine.waiting) == ([], 1)


def test_a_list_is_served_by_the_list_runner_and_ends_as_that_says() -> None:
    driven = in_state("delegated")
    assert driven.state() == "running"
    driven.pass_time(10)
    assert driven.words() == []
    assert (driven.machine.active, driven.machine.metrics.accepted) == (1, 1)


def _state(driven: Driven) -> tuple[str, str | None, int, int]:
    told = driven.query()
    assert told is not None and told.controller == LEADER
    return told.state, told.worker, told.attempt, told.tokens
