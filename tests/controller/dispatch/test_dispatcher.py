"""How requests come to workers, by value: offers, rejections, answers that never come."""

from controller.requests.events import DispatchReplyReceived
from controller.requests.instructions import SendControlOrder
from shared.ids import BootId
from shared.messages.control import CancelRequest
from tests.controller.requests.driven import Driven
from tests.controller.requests.wire import Sent

# Rejected.


def test_a_request_that_a_worker_rejects_goes_to_the_next_with_another_attempt() -> None:
    driven = Driven("w1", "w2")
    driven.ask()
    first = driven.next_sent()
    driven.reject(first)
    second = driven.next_sent()
    assert [(each.worker, each.dispatch.attempt) for each in (first, second)] == [
        ("w1", 1),
        ("w2", 2),
    ]
    assert driven.words() == [] and driven.orders() == []
    assert (driven.view("w1").load, driven.view("w2").load) == (0, 1)
    driven.accept(second)
    assert (driven.state(), driven.machine.metrics.retries) == ("running", 0)


def test_where_all_rejected_it_they_are_asked_again_when_they_tell_how_they_stand() -> None:
    driven = Driven("w1", "w2")
    driven.ask()
    for _ in range(2):
        driven.reject(driven.next_sent())
    assert driven.known().state == "queued"
    driven.pass_time(1)
    assert driven.sent() == []
    driven.hear("w2")
    driven.pass_time(0.1)
    assert driven.offered() == [("w2", 3)]


def test_where_all_rejected_it_and_none_gets_over_it_the_last_word_is_the_clients() -> None:
    driven = Driven("w1", "w2")
    driven.ask()
    driven.reject(driven.next_sent(), "model_unavailable")
    driven.reject(driven.next_sent(), "context_length_exceeded", param="prompt")
    error = driven.error()
    assert (error.code, error.param) == ("context_length_exceeded", "prompt")
    assert error.message == "w1 says model_unavailable; w2 says context_length_exceeded"


def test_who_was_rejected_in_time_is_told_when_to_come_again() -> None:
    driven = Driven("w1", "w2")
    driven.ask()
    for wait_ms in (900, 400):
        driven.reject(driven.next_sent(), "queue_full", retry_after_ms=wait_ms)
    driven.pass_time(5.1)
    error = driven.error()
    assert (error.code, error.retry_after_ms, error.retryable) == ("queue_full", 400, True)


def test_the_code_is_of_a_worker_that_gets_over_it_whichever_rejected_it_last() -> None:
    driven = Driven("w1", "w2")
    driven.ask()
    driven.reject(driven.next_sent(), "queue_full", retry_after_ms=900)
    driven.reject(driven.next_sent(), "model_unavailable")
    driven.pass_time(5.1)
    error = driven.error()
    assert (error.code, error.retry_after_ms) == ("queue_full", 900)


def test_the_code_is_of_a_full_worker_where_the_others_rejected_it() -> None:
    driven = Driven("w1", "w2")
    driven.hear("w2", queued_requests=10, max_queue_depth=10)
    driven.ask()
    driven.reject(driven.next_sent(), "draining")
    driven.pass_time(5.1)
    error = driven.error()
    assert (error.code, error.retry_after_ms) == ("queue_full", 1000)


def test_of_a_rejection_and_a_full_worker_it_is_the_one_that_passes_first() -> None:
    driven = Driven("w1", "w2")
    driven.hear("w2", queued_requests=10, max_queue_depth=10)
    driven.ask()
    driven.reject(driven.next_sent(), "memory_pressure", retry_after_ms=9000)
    driven.pass_time(5.1)
    error = driven.error()
    assert (error.code, error.retry_after_ms) == ("queue_full", 1000)


def test_a_worker_that_started_again_may_take_what_its_last_boot_rejected() -> None:
    driven = Driven("w1")
    driven.ask()
    driven.reject(driven.next_sent(), "model_unavailable", retry_after_ms=100)
    driven.hear("w1")
    driven.pass_time(0.1)
    assert driven.offered() == [], "it says the same as before"
    driven.join("w1", boot="b2")
    driven.pass_time(0.1)
    assert driven.offered() == [("w1", 2)]


def test_a_worker_that_takes_no_work_from_us_is_claimed_anew_first() -> None:
    driven = Driven("w1", "w2")
    driven.ask()
    driven.new(SendControlOrder)
    driven.reject(driven.next_sent(), "not_claimed")
    (claim,) = driven.new(SendControlOrder)
    assert (claim.worker, claim.order.verb) == ("w1", "claim")
    assert driven.offered() == [("w2", 2)] and not driven.view("w1").claimed
    driven.ask("other")
    assert driven.offered() == [("w2", 1)], "nothing goes there until it has told"
    driven.claimed("w1")
    driven.ask("third")
    assert driven.offered() == [("w1", 1)]


# Nobody knows.


def test_where_a_worker_does_not_answer_the_request_goes_on_elsewhere() -> None:
    driven = Driven("w1", "w2")
    driven.ask()
    first = driven.next_sent()
    driven.pass_time(0.99)
    assert driven.sent() == []
    driven.pass_time(0.02)
    second = driven.next_sent()
    assert (second.worker, second.dispatch.attempt) == ("w2", 2)
    ((worker, order),) = driven.orders()
    assert isinstance(order, CancelRequest) and worker == "w1"
    assert (order.attempt, order.silent, order.term) == (1, True, 1)
    driven.accept(first)
    driven.emit(first, 0, 9)
    assert (driven.known().worker, driven.known().started) == ("w2", False)
    driven.accept(second)
    assert driven.state() == "running"


def test_where_nobody_listens_nothing_is_to_be_cancelled() -> None:
    driven = Driven("w1", "w2")
    driven.ask()
    driven.on(DispatchReplyReceived(driven.next_sent().number, None))
    assert (driven.offered(), driven.orders()) == ([("w2", 2)], [])


def test_a_worker_that_did_not_answer_is_looked_after_until_it_is_heard() -> None:
    driven = Driven("w1", "w2")
    driven.ask()
    driven.next_sent()
    driven.pass_time(1.1)
    w1, w2 = ("w1", "b1"), ("w2", "b1")
    assert driven.machine.busy_workers == {w1, w2}
    driven.hear("w1")
    assert driven.machine.busy_workers == {w2}


def test_or_until_it_is_gone() -> None:
    driven = Driven("w1", "w2")
    driven.ask()
    driven.pass_time(1.1)
    assert ("w1", "b1") in driven.machine.busy_workers
    driven.leave("w1")
    assert driven.machine.busy_workers == {("w2", "b1")}


def test_a_worker_that_is_gone_is_not_waited_for() -> None:
    driven = Driven("w1", "w2")
    driven.ask()
    driven.next_sent()
    driven.leave("w1")
    assert driven.offered() == [("w2", 2)]


def test_a_worker_that_often_does_not_answer_is_left_alone() -> None:
    driven = Driven("w1", circuit_breaker={"failure_threshold": 2})
    for name in "ab":
        driven.ask(name)
        driven.pass_time(1.1)
        driven.cancel(name)
        driven.hear("w1")
    driven.sent()
    driven.ask("r")
    assert driven.sent() == []
    driven.pass_time(5.1)
    assert driven.error().code == "circuit_open"


# Answers of another boot.


def test_what_another_boot_says_it_has_it_has() -> None:
    driven = Driven("w1")
    driven.ask()
    sent = driven.next_sent()
    other = Sent(sent.worker, BootId("b2"), sent.number, sent.batch)
    driven.accept(other)
    assert (driven.state(), driven.known().boot_id) == ("running", "b2")
