"""What a controller's books say of a worker between two of its reports."""

from controller.fleet.circuit_breaker import CircuitBreaker
from controller.fleet.placement import RequestPlacement
from controller.fleet.worker_view import WorkerView
from shared.settings.controller import CircuitBreakerSettings as Limits
from tests.controller.values import models, report, view


def books(one: WorkerView) -> tuple[int, float]:
    return one.load, one.unreported_ms


def test_a_report_has_counted_what_was_taken_and_not_what_was_not_answered() -> None:
    mac = view("mac")
    for request, ms in (("accepted", 40.0), ("offered", 30.0)):
        mac.offered(request, ms)
    mac.answered("accepted", accepted=True)
    assert books(mac) == (2, 70.0)
    mac.renew(report("mac", active_requests=1), 1.0)
    assert (books(mac), mac.seen_at) == ((2, 30.0), 1.0)
    mac.answered("offered", accepted=True)
    assert books(mac) == (2, 30.0)
    mac.renew(report("mac", active_requests=2), 2.0)
    assert books(mac) == (2, 0.0)


def test_a_first_token_may_be_heard_before_the_answer() -> None:
    mac = view("mac")
    mac.offered("r", 40.0)
    mac.prefilled("r")
    assert books(mac) == (1, 0.0)
    mac.answered("r", accepted=True)
    mac.ended("r")
    assert books(mac) == (0, 0.0)


def test_the_load_is_never_less_than_nothing() -> None:
    mac = view("mac", active_requests=1)
    mac.unreported = -3
    assert mac.load == 0


def test_a_report_brings_the_models_and_forgets_whom_it_rejected() -> None:
    mac = view("mac")
    mac.queue_full_count = 7
    mac.renew(report("mac", models=models(best="loading")), 1.0)
    assert list(mac.models) == ["best"] and mac.models == {"best": mac.report.models[0]}
    assert mac.queue_full_count == 0


def test_each_answer_of_a_request_takes_a_place() -> None:
    mac = view("mac", active_requests=2, choices=5)
    mac.offered("many", 40.0, 8)
    assert (mac.load, mac.choices) == (3, 13)
    mac.answered("many", accepted=True)
    mac.prefilled("many")
    assert mac.choices == 13
    mac.renew(report("mac", active_requests=3, choices=12), 1.0)
    assert mac.choices == 12
    mac.ended("many", 8)
    assert (mac.load, mac.choices) == (2, 4)
    mac.offered("refused", 40.0, 3)
    mac.answered("refused", accepted=False)
    assert (mac.load, mac.choices) == (2, 4)


def test_a_worker_that_does_not_tell_its_answers_has_one_for_each_request() -> None:
    mac = view("mac", active_requests=2, queued_requests=1)
    mac.offered("r", 40.0)
    assert mac.choices == 4


def test_in_another_term_nothing_counts_that_was_sent_in_the_last_one() -> None:
    """The worker, claimed anew, tells what it has."""
    breaker = CircuitBreaker(Limits(failure_threshold=1, recovery_timeout_ms=1))
    breaker.failed(breaker.begin(0.0), 0.0)
    mac = WorkerView(report("mac", active_requests=1, choices=1), 1.0, breaker=breaker)
    placements = [RequestPlacement(mac, 40.0, 1.0, choices=2) for _ in range(2)]
    placements[0].accepted()
    assert (mac.load, mac.choices, mac.unreported_ms) == (3, 5, 80.0)
    assert not breaker.admits(1.0)
    mac.reset_unreported()
    assert (mac.load, mac.choices, mac.unreported_ms, mac.claimed) == (1, 1, 0.0, False)
    assert breaker.admits(1.0)
