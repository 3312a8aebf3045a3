"""Requests from their arrival to their end, by value: events in, instructions out."""

import pytest

from controller.requests.events import Finish, Queried
from controller.requests.request import State
from shared.ids import RequestId
from shared.messages.stream import KEEP_ALIVE_S, Failed, Status, StreamError
from tests.controller.requests.driven import FULL, INBOX, LEADER, Driven
from tests.controller.requests.states import NOT_AT_A_WORKER, in_state
from tests.controller.values import ADA, DEMO

DRAINING = StreamError.of("draining", "it shut down")


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


@pytest.mark.parametrize("name", ["emit", "finish", "fail", "give_back"])
def test_what_is_told_of_an_attempt_that_was_given_up_means_nothing(name: str) -> None:
    driven = Driven("w1", "w2")
    first = driven.run()
    driven.give_back(first)
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
    (end,) = [message for message in driven.told() if isinstance(message, Failed)]
    assert (end.request_id, end.attempt, end.worker) == ("b", 2000, None)


# Who waits.


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


# How many.


def test_where_the_server_authenticates_a_client_has_so_many_requests_at_once() -> None:
    driven = Driven("w1", strict=True, most_per_client=2)
    first = driven.run("a")
    driven.run("b")
    driven.ask("c", inbox="_INBOX.c")
    (end,) = driven.told("_INBOX.c")
    assert isinstance(end, Failed) and (end.attempt, end.error.retry_after_ms) == (0, 1000)
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
    driven.on(Finish(None, DRAINING))
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
    driven.on(Finish((ADA, RequestId("a")), DRAINING))
    assert (driven.state("a"), driven.state("b")) == ("failed", "running")


# Parts of lists.


def test_a_part_of_a_list_is_its_runners_to_cancel() -> None:
    driven = Driven("w1")
    sent = driven.run()
    driven.known().part_of = RequestId("whole")
    driven.cancel()
    assert driven.orders() == []
    assert driven.state() == "running", "workers may ask for it"
    driven.on(Queried((ADA, RequestId("r")), "", cancel=True, of_part=True))
    assert [order.verb for _, order in driven.orders()] == ["cancel"]
    assert driven.machine.active == 0, "the list counts"
    driven.finish(sent)


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


def _reasons(driven: Driven) -> list[str | None]:
    """What the client of `r` was told that says why it waits."""
    told = [each for each in driven.told() if isinstance(each, Status) and each.request_id == "r"]
    assert all((each.status, each.worker) == ("queued", None) for each in told)
    return [each.reason for each in told]
