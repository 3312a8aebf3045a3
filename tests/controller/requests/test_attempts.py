"""Attempts that fail after a worker had the request: what follows."""

import pytest

from controller.fleet.registry import WorkerGone
from shared.ids import BootId, WorkerId
from shared.messages.control import CancelRequest
from shared.messages.stream import DoneMessage, ErrorDetails, FailedMessage
from tests.controller.requests.driven import FULL, Driven
from tests.controller.requests.wire import Sent

STEEP = {"initial_delay_ms": 100, "multiplier": 3.0, "max_delay_ms": 5000, "jitter": 0}


def _end(driven: Driven) -> ErrorDetails:
    assert driven.machine.active == 0
    return driven.error()


def _next(driven: Driven, seconds: float = 0.2) -> Sent:
    """The next attempt, which a worker takes."""
    driven.pass_time(seconds)
    sent = driven.next_sent()
    driven.accept(sent)
    return sent


def _begun(driven: Driven, *token_ids: int) -> Sent:
    sent = driven.run()
    driven.emit(sent, 0, *token_ids)
    return sent


# Not begun.


def test_the_next_attempt_comes_after_a_pause_and_goes_to_another_worker() -> None:
    driven = Driven("w1", "w2")
    first = driven.run()
    driven.requeue(first, "engine_crashed")
    assert (driven.known().state, driven.sent()) == ("backing_off", [])
    driven.pass_time(0.09)
    assert driven.sent() == []
    second = _next(driven, 0.02)
    assert (second.worker, second.dispatch.attempt) == ("w2", 2)
    assert (second.dispatch.retries, second.dispatch.migrations) == (1, 0)
    assert driven.words() == []
    driven.finish(second)
    assert driven.state() == "finished"


def test_a_worker_need_not_keep_what_it_gave_back() -> None:
    driven = Driven("w1", "w2")
    driven.requeue(driven.run())
    ((worker, order),) = driven.orders()
    assert isinstance(order, CancelRequest)
    assert (worker, order.attempt, order.silent) == ("w1", 1, True)


def test_the_same_worker_has_it_again_where_there_is_no_other() -> None:
    driven = Driven("w1")
    driven.requeue(driven.run())
    assert _next(driven).worker == "w1"


def test_the_pauses_grow_and_there_are_so_many_attempts() -> None:
    driven = Driven("w1", "w2", "w3", retry={**STEEP, "max_attempts": 4})
    sent = driven.run()
    for pause_s in (0.1, 0.3, 0.9):
        driven.requeue(sent, "internal_error")
        driven.pass_time(pause_s - 0.01)
        assert driven.sent() == []
        sent = _next(driven, 0.02)
    driven.requeue(sent, "internal_error")
    assert _end(driven).code == "internal_error"
    assert driven.machine.metrics.retries == 3


def test_without_retries_the_first_failure_is_the_end() -> None:
    driven = Driven("w1", "w2", retry={"enabled": False})
    driven.requeue(driven.run(), retry_after_ms=700)
    error = _end(driven)
    assert (error.code, error.retry_after_ms, error.retryable) == ("draining", 700, True)


def test_what_fails_again_anyway_is_not_tried_again() -> None:
    driven = Driven("w1", "w2")
    driven.requeue(driven.run(), "request_failed")
    assert _end(driven).message == "w1 says request_failed"


def test_a_pause_beyond_the_deadline_is_not_made() -> None:
    driven = Driven("w1", "w2", retry={"initial_delay_ms": 3000, "jitter": 0})
    driven.requeue(driven.run(timeout_ms=2000))
    assert _end(driven).code == "draining"


def test_what_comes_back_after_its_deadline_ends_by_that() -> None:
    driven = Driven("w1", "w2")
    sent = driven.run(timeout_ms=2000)
    driven.pass_time(2.5)
    driven.requeue(sent)
    assert _end(driven).code == "deadline_exceeded"


def test_why_an_attempt_failed_says_more_than_that_nobody_else_is_there() -> None:
    driven = Driven("w1", waiting_room={"max_wait_ms": 1000})
    driven.run()
    driven.leave("w1")
    driven.pass_time(13)
    assert _end(driven).code == "worker_lost"


@pytest.mark.parametrize("what", ["it is gone", "it does not answer"])
@pytest.mark.parametrize("end", ["fails", "is cancelled"])
def test_an_end_told_from_here_has_no_number_under_which_its_worker_may_have_told_one(
    what: str, end: str
) -> None:
    driven = Driven("w1", waiting_room={"max_wait_ms": 1000}, dispatch={"ack_timeout_ms": 500})
    if what == "it is gone":
        driven.run()
        driven.leave("w1")
    else:
        driven.ask()
        driven.sent()
        driven.pass_time(0.6)
    if end == "is cancelled":
        driven.cancel()
    driven.pass_time(13)
    (told,) = [each for each in driven.told() if isinstance(each, DoneMessage | FailedMessage)]
    assert told.attempt == 2


@pytest.mark.parametrize("how", ["gone", "started again"])
def test_what_a_worker_had_goes_on_elsewhere_when_it_is_gone(how: str) -> None:
    driven = Driven("w1", "w2")
    driven.run()
    if how == "gone":
        driven.leave("w1")
    else:
        driven.hear("w1", "joined", boot="b2")
    sent = _next(driven)
    assert (sent.worker, sent.dispatch.attempt) == ("w2", 2)


def test_a_boot_that_is_gone_takes_nothing_of_the_next_one_along() -> None:
    driven = Driven("w1")
    driven.join("w1", boot="b2")
    driven.run()
    driven.on(WorkerGone(WorkerId("w1"), BootId("b1"), "nobody listens there any more"))
    assert driven.state() == "running"


@pytest.mark.parametrize("late", ["token", "end"])
def test_what_is_told_late_of_an_attempt_means_nothing_for_the_next_one_there(late: str) -> None:
    driven = Driven("w1")
    first = driven.run()
    driven.requeue(first)
    second = _next(driven)
    assert second.worker == first.worker
    if late == "token":
        driven.emit(first, 0, 9)
    else:
        driven.finish(first)
    assert driven.state() == "running" and not driven.known().started


# Begun.


def test_what_had_begun_goes_on_at_once_from_the_tokens_that_are_known() -> None:
    driven = Driven("w1", "w2")
    first = _begun(driven, 1, 2)
    driven.emit(first, 1, 2, 3, text_sent=5)
    driven.leave("w1")
    second = driven.next_sent()
    assert second.worker == "w2"
    dispatch = second.dispatch
    assert dispatch.resume is not None
    assert (dispatch.resume.token_ids, dispatch.resume.text_sent) == ({0: [1, 2, 3]}, {0: 5})
    assert (dispatch.retries, dispatch.migrations, dispatch.seed) == (1, 1, 5)
    assert driven.words() == ["migrating"]
    driven.accept(second)
    driven.emit(second, 2, 3, 4)
    assert driven.known().progress.tokens == {0: [1, 2, 3, 4]}


def test_the_second_time_it_makes_a_pause() -> None:
    driven = Driven("w1", "w2", "w3", retry=STEEP)
    driven.requeue(_begun(driven, 1), "internal_error")
    driven.requeue(_next(driven, 0.0), "internal_error")
    driven.pass_time(0.09)
    assert driven.sent() == []
    driven.requeue(_next(driven, 0.02), "internal_error")
    driven.pass_time(0.29)
    assert driven.sent() == []
    _next(driven, 0.02)
    assert driven.machine.metrics.migrations == 3


def test_a_request_migrates_so_often_and_then_ends() -> None:
    driven = Driven("w1", "w2", failover={"migration_limit": 1})
    driven.requeue(_begun(driven, 1), "internal_error")
    driven.requeue(_next(driven, 0.0), "internal_error")
    assert _end(driven).code == "internal_error"


def test_a_token_between_two_failures_begins_the_count_anew() -> None:
    driven = Driven("w1", "w2", retry=STEEP, failover={"migration_limit": 1})
    sent = _begun(driven, 0)
    for token in range(1, 20):
        if token % 2:
            driven.requeue(sent, "engine_crashed")
        else:
            driven.leave(sent.worker)
            driven.join(sent.worker, boot=f"b{token}")
        sent = _next(driven, 0.0)
        driven.emit(sent, token, token)
    assert sent.dispatch.migrations == 19
    driven.finish(sent)
    assert driven.state() == "finished"


@pytest.mark.parametrize("begun", [True, False])
def test_engines_that_crash_on_other_requests_never_end_it(begun: bool) -> None:
    breaker, failover = {"failure_threshold": 100}, {"migration_limit": 1}
    retry = {"max_attempts": 2}
    driven = Driven("w1", "w2", retry=retry, failover=failover, circuit_breaker=breaker)
    sent = _begun(driven, 1) if begun else driven.run()
    for _ in range(10):
        driven.requeue(sent, "engine_crashed")
        sent = _next(driven)
    driven.finish(sent)
    assert driven.state() == "finished"


def test_full_queues_that_give_back_what_has_begun_never_end_it() -> None:
    driven = Driven("w1", "w2", failover={"migration_limit": 1})
    sent = _begun(driven, 1)
    for _ in range(10):
        driven.requeue(sent, "queue_full")
        sent = _next(driven)
    driven.finish(sent)
    assert driven.state() == "finished"


@pytest.mark.parametrize("begun", [True, False])
def test_workers_that_drain_one_after_another_take_no_attempt_away(begun: bool) -> None:
    driven = Driven("w1", "w2", retry={"max_attempts": 2}, failover={"migration_limit": 1})
    sent = _begun(driven, 1) if begun else driven.run()
    for _ in range(10):
        driven.requeue(sent, "draining")
        sent = _next(driven)
    assert sent.dispatch.retries == 10
    driven.requeue(sent, "internal_error")
    driven.requeue(_next(driven), "internal_error")
    assert _end(driven).code == "internal_error"


def test_where_it_did_not_begin_again_before_the_worker_failed_it_is_a_migration_still() -> None:
    driven = Driven("w1", "w2", "w3")
    driven.requeue(_begun(driven, 1), "engine_crashed")
    driven.requeue(_next(driven, 0.0), "engine_crashed")
    sent = _next(driven)
    assert sent.dispatch.resume is not None and sent.dispatch.resume.token_ids == {0: [1]}
    assert (sent.dispatch.retries, sent.dispatch.migrations) == (2, 2)


def test_while_no_worker_has_capacity_it_waits_with_what_is_known() -> None:
    driven = Driven("w1")
    _begun(driven, 1)
    driven.leave("w1")
    assert driven.machine.waiting == 1
    driven.pass_time(2)
    assert set(driven.words()) == {"migrating"}
    driven.join("w2")
    assert _next(driven, 0.1).dispatch.resume is not None


@pytest.mark.parametrize("begun", [True, False])
def test_what_a_worker_had_accepted_waits_for_capacity_until_its_deadline(begun: bool) -> None:
    driven = Driven("w1", "w2", waiting_room={"max_wait_ms": 1000, "max_depth": 1})
    sent = _begun(driven, 1) if begun else driven.run(timeout_ms=60_000)
    for name in ("w1", "w2"):
        driven.hear(name, **FULL)
    driven.ask("new")
    driven.leave(sent.worker)
    for _ in range(30):
        driven.hear("w2", **FULL)
        driven.pass_time(1)
    assert driven.state("new") == "failed" and driven.machine.waiting == 1
    driven.hear("w2")
    assert _next(driven, 0.1).worker == "w2"


def test_a_stream_survives_a_restart_of_the_only_worker() -> None:
    driven = Driven("w1", waiting_room={"max_wait_ms": 1000})
    _begun(driven, 1)
    driven.leave("w1")
    driven.pass_time(10)
    driven.join("w1", boot="b2")
    assert _next(driven, 0.1).dispatch.resume is not None


def test_what_a_full_queue_gave_back_waits_no_longer_than_a_new_request() -> None:
    driven = Driven("w1", waiting_room={"max_wait_ms": 1000})
    driven.requeue(driven.run(), "queue_full")
    driven.hear("w1", **FULL)
    driven.pass_time(2)
    assert _end(driven).code == "queue_full"


def test_what_was_interrupted_never_makes_room_in_the_queue() -> None:
    driven = Driven("w1", "w2", waiting_room={"max_depth": 1})
    started = [driven.run(f"r{number}", priority="low") for number in range(6)]
    for name in ("w1", "w2"):
        driven.hear(name, **FULL)
    driven.ask("new", priority="high")
    for sent in started:
        driven.requeue(sent, "draining")
    for name in ("w1", "w2"):
        driven.hear(name, **FULL)
    driven.pass_time(0.5)
    assert driven.machine.waiting == 7


def test_how_long_one_waited_is_told_of_the_worker_that_it_had_to_leave() -> None:
    driven = Driven("w1", "w2")
    _begun(driven, 1)
    driven.leave("w1")
    driven.pass_time(0.25)
    driven.accept(driven.next_sent())
    assert driven.machine.take_failovers_ms() == {"w1": pytest.approx(250)}
    assert driven.machine.take_failovers_ms() == {}


# Crashes.


def test_a_request_over_which_two_engines_ended_is_not_tried_again() -> None:
    driven = Driven("w1", "w2", "w3", retry={"max_attempts": 9, "jitter": 0})
    driven.requeue(driven.run(), "engine_crashed", suspect=True)
    second = _next(driven)
    assert second.dispatch.crashes == 1
    driven.requeue(second, "engine_crashed")
    third = _next(driven, 0.3)
    assert third.dispatch.crashes == 1, "it was not suspected"
    driven.requeue(third, "engine_crashed", suspect=True)
    error = _end(driven)
    assert (error.code, error.retryable) == ("request_crashes_engine", False)
