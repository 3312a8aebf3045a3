"""A controller's books about a worker, beside a worker whose words arrive in order, but late."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.fleet.circuit_breaker import CircuitBreaker
from controller.fleet.placement import Outcome, RequestPlacement
from controller.fleet.worker_view import WorkerView
from shared.ids import ClientName
from shared.settings.controller import CircuitBreakerSettings as Limits
from tests.controller.values import report

_OUTCOMES: Sequence[Outcome] = ("served", "fault", "other")
_SAYS: dict[Outcome, str] = {"served": "succeeded", "fault": "failed", "other": "abandoned"}


class Listening(CircuitBreaker):
    """Keeps what it is told of each call."""

    def __init__(self) -> None:
        super().__init__(Limits(failure_threshold=1_000_000))
        self.heard: dict[int, list[str]] = {}

    def begin(self, now: float) -> int:
        call = super().begin(now)
        self.heard[call] = []
        return call

    def succeeded(self, call: int, now: float) -> None:
        self.heard[call].append("succeeded")

    def failed(self, call: int, now: float) -> None:
        self.heard[call].append("failed")

    def abandoned(self, call: int) -> None:
        self.heard[call].append("abandoned")


Step = Callable[[RequestPlacement], None]
TAKEN: Step = lambda placement: placement.accepted()  # noqa: E731
BEGAN: Step = lambda placement: placement.tokens_arrived(1.0)  # noqa: E731


def ended(outcome: Outcome) -> Step:
    return lambda placement: placement.ended(outcome, 2.0)


JUDGEMENTS: list[tuple[list[Step], list[str]]] = [
    ([], []),
    ([TAKEN], []),
    ([TAKEN, ended("served")], ["succeeded"]),
    ([ended("other")], ["abandoned"]),
    ([ended("fault")], ["failed"]),
    ([TAKEN, BEGAN, BEGAN], ["succeeded"]),
    ([TAKEN, BEGAN, ended("served")], ["succeeded"]),
    ([TAKEN, BEGAN, ended("other")], ["succeeded"]),
    ([TAKEN, BEGAN, ended("fault")], ["succeeded", "failed"]),
    ([BEGAN, TAKEN, ended("fault")], ["succeeded", "failed"]),
    ([TAKEN, BEGAN, ended("fault"), ended("fault")], ["succeeded", "failed"]),
    ([ended("other"), ended("fault")], ["abandoned"]),
    ([ended("fault"), ended("fault"), BEGAN], ["failed"]),
    ([ended("other"), TAKEN, BEGAN, ended("served")], ["abandoned"]),
]


@pytest.mark.parametrize(("steps", "heard"), JUDGEMENTS)
def test_a_worker_is_judged_once_but_for_a_fault_after_it_served(
    steps: list[Step], heard: list[str]
) -> None:
    breaker = Listening()
    view = WorkerView(report("mac"), 0.0, breaker=breaker)
    placement = RequestPlacement(view, 10.0, 0.0)
    for step in steps:
        step(placement)
    assert breaker.heard == {1: heard}
    over = any(step not in (TAKEN, BEGAN) for step in steps)
    assert view.load == (0 if over else 1)


def test_without_a_breaker_only_the_books_are_kept() -> None:
    view = WorkerView(report("mac"), 0.0)
    placement = RequestPlacement(view, 10.0, 0.0)
    assert (view.load, view.unreported_ms) == (1, 10.0)
    placement.accepted()
    placement.ended("fault", 1.0)
    assert (view.load, view.unreported_ms) == (0, 0.0)


def test_a_trial_takes_its_place_in_the_breaker_when_it_is_chosen() -> None:
    limits = Limits(failure_threshold=1, recovery_timeout_ms=1000, half_open_max_calls=1)
    breaker = CircuitBreaker(limits)
    view = WorkerView(report("mac"), 0.0, breaker=breaker)
    RequestPlacement(view, 0.0, 0.0).ended("fault", 0.0)
    assert not breaker.admits(0.9)
    trial = RequestPlacement(view, 0.0, 1.0)
    assert not breaker.admits(1.0)
    trial.ended("other", 1.0)
    assert breaker.admits(1.0)


@dataclass(slots=True, eq=False)
class Request:
    """
    Attributes:
        alive: the controller follows it.
        heard: what it was judged by, as far as it should be.
    """

    placement: RequestPlacement
    view: WorkerView
    call: int
    prefill_ms: float
    alive: bool = True
    taken: bool = False
    heard: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Report:
    """How many requests of ours, and of other controllers, there were."""

    boot: int
    ours: frozenset[Request]
    others: int


Word = tuple[str, Request] | Report


class BooksBesideAWorker(RuleBasedStateMachine):
    """A worker takes requests some time after they were sent, and is heard some time later: its
    words arrive in the order in which it spoke. A controller may give up on a request meanwhile.

    What the controller counts is at any time: the requests that it sent, and did not hear of that
    they are over; and those of its last report that it does not know: of other controllers,
    given up, or sent to the boot before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Listening()
        self.requests: list[Request] = []
        self.boot = self.heard_boot = 0
        self.view = self._new_view(0)
        self.on_the_way: deque[Request] = deque()
        self.there: set[Request] = set()
        self.others = 0
        self.said: deque[Word] = deque()
        self.strangers = 0
        self.unknown_ms: dict[Request, float] = {}

    # The controller.

    @rule(prefill_ms=st.sampled_from([0.0, 0.1, 40.0, 1e6]))
    def send(self, prefill_ms: float) -> None:
        placement = RequestPlacement(self.view, prefill_ms, 0.0)
        request = Request(placement, self.view, len(self.requests) + 1, prefill_ms)
        self.requests.append(request)
        self.unknown_ms[request] = prefill_ms
        self.on_the_way.append(request)

    @precondition(lambda self: self._alive())
    @rule(data=st.data(), outcome=st.sampled_from(_OUTCOMES))
    def give_up(self, data: st.DataObject, outcome: Outcome) -> None:
        self._over(data.draw(st.sampled_from(self._alive())), outcome)

    @precondition(lambda self: self.said)
    @rule(count=st.integers(1, 4), outcome=st.sampled_from(_OUTCOMES))
    def listen(self, count: int, outcome: Outcome) -> None:
        for _ in range(min(count, len(self.said))):
            self._hear(self.said.popleft(), outcome)

    @precondition(lambda self: any(not request.alive for request in self.requests))
    @rule(data=st.data(), outcome=st.sampled_from(_OUTCOMES))
    def tell_once_more(self, data: st.DataObject, outcome: Outcome) -> None:
        over = [request for request in self.requests if not request.alive]
        placement = data.draw(st.sampled_from(over)).placement
        data.draw(st.sampled_from([TAKEN, BEGAN, ended(outcome)]))(placement)

    # The worker.

    @precondition(lambda self: self.on_the_way)
    @rule(takes=st.booleans())
    def answer(self, takes: bool) -> None:
        request = self.on_the_way.popleft()
        if takes:
            self.there.add(request)
        self.said.append(("taken" if takes else "refused", request))

    @precondition(lambda self: self.there)
    @rule(data=st.data(), end=st.booleans())
    def go_on(self, data: st.DataObject, end: bool) -> None:
        request = data.draw(st.sampled_from(sorted(self.there, key=lambda one: one.call)))
        self.said.append(("over" if end else "began", request))
        if end:
            self.there.remove(request)

    @rule(others=st.integers(0, 3))
    def report(self, others: int) -> None:
        self.said.append(Report(self.boot, frozenset(self.there), others))

    @rule()
    def start_again(self) -> None:
        """What was there is gone, and what is on its way finds nobody."""
        self.boot += 1
        self.there.clear()
        self.on_the_way.clear()
        self.said.append(Report(self.boot, frozenset(), 0))

    # What must hold.

    @invariant()
    def the_load_is_what_the_controller_can_know(self) -> None:
        ours = [one for one in self._alive() if one.view is self.view]
        assert self.view.load == len(ours) + self.strangers
        assert self.view.report.active_requests + self.view.unreported >= 0

    @invariant()
    def the_time_for_prompts_is_that_of_those_which_no_report_knows(self) -> None:
        expected = sum(ms for one, ms in self.unknown_ms.items() if one.view is self.view)
        assert self.view.unreported_ms == pytest.approx(expected, abs=1e-6)

    @invariant()
    def each_is_judged_once(self) -> None:
        assert self.breaker.heard == {one.call: one.heard for one in self.requests}

    def teardown(self) -> None:
        """When all has ended and was reported, nothing is left."""
        self.on_the_way.clear()
        for request in list(self.there):
            self.said.append(("over", request))
        self.there.clear()
        while self.said:
            self._hear(self.said.popleft(), "served")
        for request in self._alive():
            self._over(request, "fault")
        assert self.view.load == self.strangers
        assert self.view.unreported_ms == pytest.approx(0, abs=1e-6)
        self._hear(Report(self.boot, frozenset(), 0), "served")
        assert (self.view.load, self.view.unreported, self.view.unreported_ms) == (0, 0, 0.0)

    def _alive(self) -> list[Request]:
        return [request for request in self.requests if request.alive]

    def _new_view(self, others: int) -> WorkerView:
        return WorkerView(report("mac", active_requests=others), 0.0, breaker=self.breaker)

    def _hear(self, word: Word, outcome: Outcome) -> None:
        if isinstance(word, Report):
            self._hear_report(word)
            return
        what, request = word
        if not request.alive:
            return
        match what:
            case "taken":
                request.placement.accepted()
                request.taken = True
            case "began":
                request.placement.tokens_arrived(0.0)
                self.unknown_ms.pop(request, None)
                if not request.heard:
                    request.heard.append("succeeded")
            case "refused":
                self._over(request, "other")
            case _:
                self._over(request, outcome)

    def _hear_report(self, word: Report) -> None:
        if word.boot != self.heard_boot:
            self.heard_boot = word.boot
            self.view = self._new_view(word.others)
            for request in self._alive():
                if request.taken:
                    self._over(request, "fault")
        else:
            held = len(word.ours) + word.others
            self.view.renew(report("mac", active_requests=held), 0.0)
            for request in self._alive():
                if request.taken:
                    self.unknown_ms.pop(request, None)
        known = [one for one in word.ours if one.alive and one.view is self.view]
        self.strangers = word.others + len(word.ours) - len(known)

    def _over(self, request: Request, outcome: Outcome) -> None:
        request.placement.ended(outcome, 0.0)
        request.alive = False
        self.unknown_ms.pop(request, None)
        if not request.heard or outcome == "fault":
            request.heard.append(_SAYS[outcome])


test_the_books_never_differ_from_what_can_be_known = BooksBesideAWorker.TestCase


def test_requests_of_clients_are_counted_while_a_worker_has_them() -> None:
    view = WorkerView(report("a"), seen_at=0.0)
    eve, ada = ClientName("eve"), ClientName("ada")
    placements = [RequestPlacement(view, 0.0, 0.0, client=client) for client in (eve, eve, ada)]
    assert view.held == {eve: 2, ada: 1}
    placements[0].accepted()
    for placement in (placements[0], placements[0], placements[2]):
        placement.ended("other", 1.0)
    assert view.held == {eve: 1} and ada not in view.held
    view.reset_unreported()
    placements[1].ended("other", 2.0)
    assert not view.held
