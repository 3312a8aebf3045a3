"""When a worker is left alone, and when it is tried again; the clock is passed in."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller.fleet.circuit_breaker import BreakerState, CircuitBreaker
from shared.settings.controller import CircuitBreakerSettings as Limits

LIMITS = Limits(
    failure_threshold=3,
    failure_window_ms=10_000,
    recovery_timeout_ms=5000,
    half_open_max_calls=2,
    half_open_success_threshold=3,
)
Tell = Callable[[CircuitBreaker, int, float], None]


def fail(breaker: CircuitBreaker, now: float) -> None:
    breaker.failed(breaker.begin(now), now)


def succeed(breaker: CircuitBreaker, now: float) -> None:
    breaker.succeeded(breaker.begin(now), now)


@pytest.fixture
def breaker() -> CircuitBreaker:
    return CircuitBreaker(LIMITS)


@pytest.fixture
def opened() -> CircuitBreaker:
    """Open from 2 until 7."""
    breaker = CircuitBreaker(LIMITS)
    for now in (0, 1, 2):
        fail(breaker, now)
    return breaker


def test_it_opens_at_so_many_failures_and_not_before(breaker: CircuitBreaker) -> None:
    for now in (0, 1):
        fail(breaker, now)
        assert (breaker.state(now), breaker.admits(now), breaker.times_opened) == (
            "closed",
            True,
            0,
        )
    fail(breaker, 2)
    assert (breaker.state(2), breaker.admits(2), breaker.times_opened) == ("open", False, 1)


def test_failures_of_long_ago_do_not_count(breaker: CircuitBreaker) -> None:
    for now in (0, 1, 10.5, 11.5, 21):  # never three within ten seconds
        fail(breaker, now)
    assert breaker.state(21) == "closed"
    fail(breaker, 21.4)
    assert breaker.state(21.4) == "open"


def test_what_fails_at_the_same_time_is_one_event(breaker: CircuitBreaker) -> None:
    calls = [breaker.begin(0) for _ in range(10)]
    for number, call in enumerate(calls):
        breaker.failed(call, 1 + number / 200)
    fail(breaker, 2)
    assert breaker.state(2) == "closed"
    fail(breaker, 3)
    assert breaker.state(3) == "open"


def test_a_stream_of_failures_is_more_than_one_event(breaker: CircuitBreaker) -> None:
    for number in range(10):
        fail(breaker, number * 0.06)
    assert breaker.state(1) == "open"


def test_while_it_is_open_it_says_when_to_come_again(opened: CircuitBreaker) -> None:
    said = [(opened.retry_after_ms(now), opened.admits(now)) for now in (2, 6.75, 6.9999, 7)]
    assert said == [(5000, False), (250, False), (1, False), (0, True)]


def test_half_open_it_lets_so_many_through_at_a_time(opened: CircuitBreaker) -> None:
    first = opened.begin(7)
    assert opened.admits(7)
    opened.begin(7)
    assert (opened.state(7), opened.admits(7), opened.retry_after_ms(7)) == ("half-open", False, 0)
    opened.succeeded(first, 8)
    assert (opened.state(8), opened.admits(8)) == ("half-open", True)


def test_enough_successes_close_it_with_nothing_held_against_the_worker(
    opened: CircuitBreaker,
) -> None:
    for _ in range(3):
        assert opened.state(7) == "half-open"
        succeed(opened, 7)
    assert opened.state(7) == "closed"
    fail(opened, 8)
    fail(opened, 9)
    assert opened.state(9) == "closed"


def test_one_failure_of_a_trial_opens_it_again(opened: CircuitBreaker) -> None:
    succeed(opened, 7)
    succeed(opened, 7)
    fail(opened, 8)
    assert (opened.state(8), opened.times_opened, opened.retry_after_ms(8)) == ("open", 2, 5000)
    for _ in range(2):  # what was counted before counts no more
        succeed(opened, 13)
    assert opened.state(13) == "half-open"


def test_a_trial_that_fails_after_its_first_success_opens_it_too(opened: CircuitBreaker) -> None:
    call = opened.begin(7)
    opened.succeeded(call, 8)
    opened.failed(call, 9)
    assert opened.state(9) == "open"


@pytest.mark.parametrize("tell", [CircuitBreaker.failed, CircuitBreaker.succeeded])
@pytest.mark.parametrize("now", [6, 7])
def test_what_began_before_it_opened_changes_nothing(tell: Tell, now: float) -> None:
    breaker = CircuitBreaker(LIMITS)
    old = [breaker.begin(0) for _ in range(5)]
    for at in (0, 1, 2):
        fail(breaker, at)
    state = breaker.state(now)
    for call in old:
        tell(breaker, call, now)
    assert (breaker.state(now), breaker.times_opened) == (state, 1)
    assert breaker.retry_after_ms(now) == (1000 if now == 6 else 0)


def test_trials_of_an_earlier_time_change_nothing(opened: CircuitBreaker) -> None:
    late = opened.begin(7)
    fail(opened, 7)
    assert opened.state(12) == "half-open"
    opened.failed(late, 12)
    assert opened.state(12) == "half-open"
    trials = [opened.begin(12), opened.begin(12)]
    opened.abandoned(late)
    assert not opened.admits(12)
    opened.succeeded(trials[0], 12)
    assert opened.admits(12)


# Silence.


def test_what_failed_while_the_worker_was_silent_is_one_failure(breaker: CircuitBreaker) -> None:
    fail(breaker, 0)
    for now in (4, 5):
        fail(breaker, now)
    assert breaker.state(5) == "open"
    breaker.count_as_one_failure(3.5, 6)
    assert (breaker.state(6), breaker.admits(6)) == ("closed", True)
    fail(breaker, 6.05)  # of that cause, too
    assert breaker.state(6.05) == "closed"
    fail(breaker, 7)
    assert breaker.state(7) == "open"


def test_what_had_failed_before_its_silence_still_counts(opened: CircuitBreaker) -> None:
    opened.count_as_one_failure(2, 3)
    assert opened.state(3) == "open"
    opened.count_as_one_failure(1, 3)
    assert opened.state(3) == "closed"
    fail(opened, 4)
    assert opened.state(4) == "open"


def test_silence_in_which_nothing_failed_is_no_failure(opened: CircuitBreaker) -> None:
    opened.count_as_one_failure(2.5, 3)
    assert opened.state(3) == "open"
    assert opened.state(7) == "half-open"
    fail(opened, 8)  # a trial
    opened.count_as_one_failure(0, 9)
    assert opened.state(9) == "open"


class BreakerBesideAModel(RuleBasedStateMachine):
    """The model keeps every failure and every trial, and looks at all of them each time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.since = 0.0
        self.state: BreakerState = "closed"
        self.calls: dict[int, bool] = {}  # those not over yet: whether they succeeded at first
        self.begun = self.last_before = 0
        self.trials: set[int] = set()
        self.successes = 0
        self.events: list[float] = []
        self.opened_by: list[float] = []

    @initialize(threshold=st.integers(1, 4), at_once=st.integers(1, 3), successes=st.integers(1, 3))
    def begin_with(self, threshold: int, at_once: int, successes: int) -> None:
        self.limits = Limits(
            failure_threshold=threshold,
            failure_window_ms=8000,
            recovery_timeout_ms=5000,
            half_open_max_calls=at_once,
            half_open_success_threshold=successes,
        )
        self.breaker = CircuitBreaker(self.limits)

    @rule(seconds=st.sampled_from([0.0625, 1.0, 4.0, 5.0, 8.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.state == "open" and self.now - self.since >= 5:
            self._become("half-open")

    @rule()
    def call(self) -> None:
        allowed = self.state == "closed" or (
            self.state == "half-open" and len(self.trials) < self.limits.half_open_max_calls
        )
        assert self.breaker.admits(self.now) is allowed
        if not allowed:
            return
        call = self.breaker.begin(self.now)
        self.calls[call] = False
        self.begun = call
        if self.state == "half-open":
            self.trials.add(call)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        waiting = [call for call, good in self.calls.items() if not good]
        if waiting:
            self._succeed(data.draw(st.sampled_from(waiting)))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(list(self.calls)))
        del self.calls[call]
        self.trials.discard(call)
        self.breaker.failed(call, self.now)
        if self.state == "half-open" and call > self.last_before:
            self._become("open")
            self.opened_by = []
        elif self.state == "closed":
            recent = [at for at in self.events if self.now - at < 8]
            if not recent or self.now - recent[-1] >= 0.1:
                recent.append(self.now)
            self.events = recent
            if len(recent) >= self.limits.failure_threshold:
                self.opened_by = list(recent)
                self._become("open")

    @rule(seconds=st.sampled_from([0.0625, 1.0, 4.0, 9.0]))
    def was_silent(self, seconds: float) -> None:
        self.breaker.count_as_one_failure(self.now - seconds, self.now)
        failed = self.opened_by if self.state == "open" else self.events
        before = [at for at in failed if self.now - at > seconds]
        opens = len(before) + 1 >= self.limits.failure_threshold
        if before != failed and not (self.state == "open" and opens):
            self.state = "closed" if self.state == "open" else self.state
            self.events = [*before, self.now]

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        waiting = [call for call, good in self.calls.items() if not good]
        if waiting:
            call = data.draw(st.sampled_from(waiting))
            del self.calls[call]
            self.trials.discard(call)
            self.breaker.abandoned(call)

    @invariant()
    def both_say_the_same(self) -> None:
        if not hasattr(self, "breaker"):
            return
        assert self.breaker.state(self.now) == self.state
        assert len(self.trials) <= self.limits.half_open_max_calls
        assert self.breaker.admits(self.now) is not (
            self.state == "open" or len(self.trials) == self.limits.half_open_max_calls
        )
        assert (self.breaker.retry_after_ms(self.now) > 0) is (self.state == "open")

    def teardown(self) -> None:
        """Once all goes well, it closes in the time it takes to wait and to try."""
        if not hasattr(self, "breaker"):
            return
        for call in [call for call, good in self.calls.items() if not good]:
            self._succeed(call)
        self.wait(5)
        for _ in range(self.limits.half_open_success_threshold):
            assert self.breaker.admits(self.now)
            succeed(self.breaker, self.now)
        assert self.breaker.state(self.now) == "closed"

    def _succeed(self, call: int) -> None:
        self.calls[call] = True
        self.breaker.succeeded(call, self.now)
        if call in self.trials:
            self.trials.remove(call)
            self.successes += 1
            if self.successes >= self.limits.half_open_success_threshold:
                self._become("closed")

    def _become(self, state: BreakerState) -> None:
        self.state, self.since = state, self.now
        self.trials.clear()
        self.events.clear()
        self.successes = 0
        self.last_before = self.begun


test_a_breaker_never_differs_from_the_model = BreakerBesideAModel.TestCase
