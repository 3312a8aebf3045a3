"""From the queue to the engines: who is next, where it goes, and how many an engine gets."""

import itertools
from typing import Any

import pytest

from shared.ids import BootId, ClientName, ModelId
from shared.messages.base import PRIORITIES, Priority
from shared.settings import ClusterSettings
from tests.worker.recording_engine import RecordingEngine
from tests.worker.sessions.stores import new_store
from tests.worker.values import CLIENT, MAC, OWNER, TINY, dispatched
from tests.worker.virtual_time import Clock
from worker.models.worker_models import ModelCatalogue
from worker.requests.active_request import ActiveRequest
from worker.requests.engine_order import submit_order
from worker.requests.isolation import FailureIsolation
from worker.scheduling.admission import AdmissionQueue
from worker.scheduling.engine_costs import EngineCostEstimator
from worker.scheduling.local_prefix_index import LocalPrefixIndex
from worker.scheduling.model_statistics import ModelStatistics

_DEMO = ModelId("demo")
_MOST = 32
_ADA = ClientName("ada")


class Admitting:
    """Admission to engines that run and hold both models."""

    def __init__(self, engines: int = 1, *, batching: Any = None, **queue: Any) -> None:
        settings = ClusterSettings.model_validate(
            {
                "skills": {"chat": [TINY, _DEMO]},
                "worker": {
                    "continuous_batching": {"max_batch_size": _MOST, **(batching or {})},
                    "request_queue": {"max_depth": 1000, **queue},
                },
            }
        )
        self.engines = [RecordingEngine(index) for index in range(engines)]
        self.catalogue = ModelCatalogue(settings)
        for model in self.catalogue:
            model.engines.update(range(engines))
        kept = LocalPrefixIndex(MAC, BootId("b"), new_store())
        costs = EngineCostEstimator(self.engines, ModelStatistics(self.engines), kept, cores=None)
        self.admission = AdmissionQueue(
            settings.worker, self.catalogue, self.engines, costs, FailureIsolation()
        )
        self._numbers = itertools.count(1)

    def push(
        self,
        priority: Priority = "medium",
        *,
        model: ModelId = TINY,
        choices: int = 1,
        client: ClientName = CLIENT,
        **fields: Any,
    ) -> ActiveRequest:
        """One more waits; `fields` are those of the request."""
        request = self.request(priority, model=model, choices=choices, client=client, **fields)
        assert self.admission.push(request) is None
        return request

    def request(
        self,
        priority: Priority,
        *,
        model: ModelId = TINY,
        choices: int = 1,
        client: ClientName = CLIENT,
        **fields: Any,
    ) -> ActiveRequest:
        sequences = list(itertools.islice(self._numbers, choices))
        dispatch = dispatched(str(sequences[0]), priority=priority, n=choices, **fields)
        dispatch = dispatch.model_copy(update={"model": model, "client": client})
        return ActiveRequest(dispatch, OWNER, MAC, sequences)

    def admit(self) -> list[ActiveRequest]:
        """All for whom there is a place now, in order."""
        admitted = []
        while (chosen := self.admission.next()) is not None:
            request, engine = chosen
            assert request.engine == engine.index
            admitted.append(request)
        return admitted

    def end(self, request: ActiveRequest) -> None:
        """As the scheduler does when one that was admitted ends."""
        assert request.engine is not None
        self.admission.on_ended(request)
        self.admission.leave_queue(request)
        for _ in request.choices:
            self.admission.release_slot(request.engine, request.model)


def _places(worker: Admitting, priority: Priority = "medium", model: ModelId = TINY) -> int:
    """How many more of a kind are admitted while many of them wait."""
    requests = [worker.push(priority, model=model) for _ in range(_MOST + 20)]
    admitted = worker.admit()
    assert admitted == requests[: len(admitted)]
    for request in requests[len(admitted) :]:
        worker.admission.leave_queue(request)
    return len(admitted)


# How many.


@pytest.mark.parametrize(
    ("limit", "places"), [(1, 3), (2, 4), (4, 6), (8, 10), (12, 15), (16, 20), (30, 32), (32, 32)]
)
def test_an_engine_gets_what_may_decode_at_once_and_a_few_more(limit: int, places: int) -> None:
    worker = Admitting()
    worker.engines[0].measures(limits={_DEMO: 1, TINY: limit})
    assert _places(worker) == places


def test_before_anything_is_measured_it_gets_a_whole_batch() -> None:
    assert _places(Admitting()) == _MOST


def test_without_batching_it_gets_one_at_a_time() -> None:
    worker = Admitting(batching={"enabled": False})
    first, second = worker.push(), worker.push("high")
    assert worker.admit() == [second]
    assert worker.admit() == []
    worker.end(second)
    assert worker.admit() == [first]


def test_urgent_ones_are_let_in_up_to_a_whole_batch() -> None:
    worker = Admitting()
    worker.engines[0].measures(limits={TINY: 4})
    assert _places(worker) == 6
    assert _places(worker, "low") == 0
    assert _places(worker, "high") == _MOST - 6
    assert _places(worker) == 0


def test_what_only_counts_goes_past_all_that_waits_and_takes_no_place_from_it() -> None:
    worker = Admitting(batching={"enabled": False})
    running = worker.push("high")
    assert worker.admit() == [running]
    waiting = worker.push("high")
    counting = worker.push("low", count_only=True)
    assert worker.admit() == [counting]
    worker.end(counting)
    assert worker.admit() == []
    worker.end(running)
    assert worker.admit() == [waiting]


def test_one_that_rose_in_the_queue_is_not_urgent() -> None:
    worker = Admitting(promote_after_ms=1000)
    worker.engines[0].measures(limits={TINY: 4})
    assert _places(worker) == 6
    medium = worker.push()
    worker.admission.promote(medium.times.received_at + 1)
    urgent = worker.push("high")
    assert worker.admit() == [urgent]
    assert list(worker.admission.queued_by_model().elements()) == [TINY]


def test_who_has_waited_long_goes_to_an_engine_all_of_whose_rows_are_taken() -> None:
    worker = Admitting()
    running = [worker.push() for _ in range(_MOST)]
    assert worker.admit() == running
    waiting = [worker.push() for _ in range(20)]
    assert worker.admit() == []
    for request in waiting[:12]:
        request.times.received_at -= 11
    assert worker.admit() == waiting[:8], "a quarter more than it has rows"
    worker.end(running[0])
    assert worker.admit() == [waiting[8]]
    for request in running[1:]:
        worker.end(request)
    assert worker.admit() == waiting[9:]


def test_a_limit_that_fell_lets_nobody_in_until_enough_have_left() -> None:
    worker = Admitting()
    requests = [worker.push() for _ in range(10)]
    assert worker.admit() == requests
    worker.engines[0].measures(limits={TINY: 2})
    waiting = worker.push()
    for number, request in enumerate(requests[:7], start=1):
        worker.end(request)
        assert worker.admit() == ([waiting] if number == 7 else [])


def test_a_request_has_a_place_for_each_of_its_choices() -> None:
    worker = Admitting()
    worker.engines[0].measures(limits={TINY: 4})
    four = worker.push(choices=4)
    assert worker.admit() == [four]
    assert _places(worker) == 2
    worker.end(four)
    assert _places(worker) == 4


# Several models and engines.


def test_each_model_has_places_of_its_own() -> None:
    worker = Admitting()
    worker.engines[0].measures(limits={TINY: 1, _DEMO: 8})
    assert (_places(worker, model=TINY), _places(worker, model=_DEMO)) == (3, 10)
    assert (_places(worker, model=TINY), _places(worker, model=_DEMO)) == (0, 0)


def test_one_whose_model_has_no_place_holds_up_no_other() -> None:
    worker = Admitting()
    worker.catalogue[TINY].engines.clear()
    held_up = worker.push("high", model=TINY)
    others = [worker.push(model=_DEMO), worker.push("low", model=_DEMO)]
    assert worker.admit() == others
    worker.catalogue[TINY].engines.add(0)
    assert worker.admit() == [held_up]


def test_each_engine_has_places_of_its_own_and_they_fill_evenly() -> None:
    worker = Admitting(engines=2)
    worker.engines[0].measures(limits={TINY: 1})
    worker.engines[1].measures(limits={TINY: 4})
    requests = [worker.push() for _ in range(20)]
    assert [request.engine for request in worker.admit()] == [0, 1, 0, 1, 0, 1, 1, 1, 1]
    assert {request.engine for request in requests[9:]} == {None}


def test_one_that_restarts_gets_nothing() -> None:
    worker = Admitting(engines=2)
    worker.engines[0].state = "restarting"
    worker.push()
    assert [request.engine for request in worker.admit()] == [1]


def test_a_session_goes_where_it_was_while_there_is_a_place() -> None:
    worker = Admitting(engines=2)
    worker.push()
    first = worker.push(session_id="auto-talk")
    worker.admit()
    assert first.engine == 1
    worker.push()
    again = worker.push(session_id="auto-talk")
    worker.admit()
    assert again.engine == 1
    worker.engines[1].measures(limits={TINY: 1})
    for _ in range(3):
        worker.push(session_id="auto-talk")
    assert [request.engine for request in worker.admit()] == [1, 0, 0]


# In which order.


def test_the_highest_priority_is_next_and_equals_keep_their_order() -> None:
    worker = Admitting()
    levels: list[Priority] = ["low", "medium", "high", "low", "medium", "high"]
    requests = [worker.push(level) for level in levels]
    assert worker.admit() == [requests[number] for number in (2, 5, 1, 4, 0, 3)]


def test_one_that_begins_like_what_runs_goes_before_its_equals_until_that_has_ended() -> None:
    worker = Admitting(batching={"max_batch_size": 2})
    running, other = worker.push(prompt="alike"), worker.push(prompt="else")
    assert worker.admit() == [running, other]
    waiting = [worker.push(prompt=prompt) for prompt in ("new", "alike", "newer", "alike")]
    worker.end(other)
    assert worker.admit() == [waiting[1]]
    worker.end(running)
    worker.end(waiting[1])
    assert worker.admit() == [waiting[0], waiting[2]]


# Several clients.


def test_a_newcomer_gets_a_slot_beyond_those_that_another_client_has() -> None:
    worker = Admitting()
    flood = [worker.push() for _ in range(_MOST + 20)]
    assert not any(request.is_newcomer for request in worker.admit())
    first, second = worker.push(client=_ADA), worker.push(client=_ADA)
    assert (worker.admit(), first.is_newcomer) == ([first], True)
    worker.end(first)
    assert (worker.admit(), second.is_newcomer) == ([second], True)
    worker.end(flood[0])
    assert not any(request.is_newcomer for request in worker.admit())


def test_only_the_first_answer_of_a_newcomer_takes_a_slot_of_another_client() -> None:
    worker = Admitting()
    worker.push()
    worker.admit()
    several = worker.push(client=_ADA, choices=4)
    assert worker.admit() == [several]
    orders = [submit_order(several, choice) for choice in several.choices]
    assert [order.is_newcomer for order in orders] == [True, False, False, False]


def test_there_are_no_newcomers_where_nobody_else_runs() -> None:
    worker = Admitting()
    request = worker.push(client=_ADA)
    assert (worker.admit(), request.is_newcomer) == ([request], False)


def test_clients_take_turns() -> None:
    worker = Admitting(batching={"max_batch_size": 1})
    eve = [worker.push() for _ in range(4)]
    ada = [worker.push(client=_ADA) for _ in range(4)]
    admitted = worker.admit()
    assert sum(request in eve for request in admitted) <= 1 + len(admitted) // 2
    assert sum(request in ada for request in admitted) >= len(admitted) // 2


# What is counted.


def test_those_who_come_wait_and_go_are_counted_by_priority() -> None:
    worker = Admitting(max_depth=4, promote_after_ms=1000)
    worker.engines[0].measures(limits={TINY: 1})
    running = [worker.push("low") for _ in range(3)]
    worker.admit()
    levels: list[Priority] = ["medium", "low", "low", "medium"]
    waiting = [worker.push(level) for level in levels]
    assert worker.admission.rejects("high", CLIENT)
    worker.admission.promote(waiting[-1].times.received_at + 1)
    status = worker.admission.status()
    high, medium, low = (status.levels[level] for level in PRIORITIES)
    assert (high.queued, high.rejected, high.admitted) == (0, 1, 0)
    assert (medium.queued, medium.promoted, medium.admitted) == (2, 2, 0)
    assert (low.queued, low.promoted, low.admitted) == (2, 2, 3)
    assert status.room == dict.fromkeys(PRIORITIES, 0)
    assert status.drain_per_s > 0
    assert (len(worker.admission), worker.admission.max_depth) == (4, 4)
    for request in running:
        worker.end(request)
    worker.admit()
    assert worker.admission.status().levels["medium"].admitted == 2
    assert worker.admission.status().room == dict.fromkeys(PRIORITIES, 3)


def test_told_to_drop_it_says_whom_and_counts_it() -> None:
    worker = Admitting(max_depth=1, reject_when_full=False)
    low, high = worker.push("low"), worker.request("high")
    assert worker.admission.rejects("low", CLIENT)
    assert not worker.admission.rejects("high", CLIENT)
    assert worker.admission.push(high) is low
    counts = worker.admission.status().levels["low"]
    assert (counts.dropped, counts.rejected) == (1, 1)
    assert worker.admit() == [high]


def test_those_who_wait_are_told_apart_by_their_models() -> None:
    worker = Admitting()
    worker.push(model=TINY)
    worker.admit()
    for model in (TINY, _DEMO, _DEMO):
        worker.push(model=model)
    assert worker.admission.queued_by_model() == {TINY: 1, _DEMO: 2}


# What leaves.


def test_one_that_ends_while_it_waits_leaves_the_queue_and_others_leave_nothing() -> None:
    worker = Admitting(max_depth=2)
    first, second = worker.push(), worker.push()
    worker.admission.leave_queue(worker.request("medium"))
    assert len(worker.admission) == 2
    worker.admission.leave_queue(first)
    worker.admission.leave_queue(first)
    assert len(worker.admission) == 1
    worker.push()
    assert worker.admit()[0] is second


# A bound of the waiting time.


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    return clock


class Serving(Admitting):
    """One place, which is free again after a second; who waits was there from the start."""

    def __init__(self, clock: Clock, *, served: int, **queue: Any) -> None:
        super().__init__(batching={"enabled": False}, **queue)
        for model in self.catalogue:
            model.state = "warm"
        self._clock = clock
        for _ in range(served + 1):
            self.push()
        (self.running,) = self.admit()
        for _ in range(served):
            self.serve()

    def serve(self) -> None:
        self._clock.now += 1
        self.end(self.running)
        (self.running,) = self.admit()

    @property
    def room(self) -> dict[Priority, int]:
        return self.admission.status().room


def test_no_more_wait_than_get_their_turn_in_time(clock: Clock) -> None:
    worker = Serving(clock, served=4, max_wait_ms=5000)
    assert worker.room == dict.fromkeys(PRIORITIES, 5)
    for _ in range(5):
        assert not worker.admission.rejects("medium", CLIENT)
        worker.push()
        worker.admit()
    assert worker.admission.rejects("medium", CLIENT)
    worker.serve()
    assert worker.room["medium"] == 1


def test_those_of_lower_priority_are_not_in_the_way(clock: Clock) -> None:
    worker = Serving(clock, served=4, max_wait_ms=5000)
    for level in ("high", "medium", "low", "low"):
        worker.push(level)
    assert worker.room == {"high": 4, "medium": 3, "low": 1}


def test_its_depth_bounds_it_all_the_same(clock: Clock) -> None:
    assert Serving(clock, served=4, max_depth=10, max_wait_ms=60_000).room["high"] == 10


@pytest.mark.parametrize("max_wait_ms", [None, 5000])
def test_the_time_bounds_nothing_when_it_is_not_set_or_not_known(
    clock: Clock, max_wait_ms: int | None
) -> None:
    served = 3 if max_wait_ms else 10
    worker = Serving(clock, served=served, max_depth=80, max_wait_ms=max_wait_ms)
    assert worker.room["high"] == 80


def test_one_may_always_wait(clock: Clock) -> None:
    worker = Serving(clock, served=4, max_wait_ms=10)
    assert worker.room["medium"] == 1
    worker.push()
    assert worker.room["medium"] == 0


def test_who_waits_for_a_model_to_be_loaded_is_not_in_the_way(clock: Clock) -> None:
    worker = Serving(clock, served=4, max_wait_ms=5000)
    worker.catalogue[_DEMO].state = "loading"
    worker.catalogue[_DEMO].engines.clear()
    for _ in range(20):
        worker.push(model=_DEMO)
    worker.admit()
    clock.now += 25  # of a load: nobody waits for a place meanwhile
    worker.push()
    assert worker.room["medium"] == 4
    worker.admit()
    worker.serve()
    assert worker.room["medium"] == 5


def test_a_queue_that_drops_refuses_the_newest_that_would_wait_too_long(clock: Clock) -> None:
    worker = Serving(clock, served=4, max_wait_ms=2000, reject_when_full=False)
    worker.push("low")
    worker.push()
    worker.push()
    assert worker.admission.rejects("medium", CLIENT) and not worker.admission.rejects(
        "high", CLIENT
    )


def test_who_waited_for_a_place_as_long_as_it_may_has_to_go(clock: Clock) -> None:
    worker = Serving(clock, served=0, max_wait_ms=5000)
    early, urgent = worker.push(), worker.push("high")
    clock.now += 4
    worker.push()
    clock.now += 0.9
    assert worker.admission.overdue(clock.now) == []
    clock.now += 0.1
    assert worker.admission.overdue(clock.now) == [urgent, early]
    levels = worker.admission.status().levels
    assert (levels["high"].dropped, levels["medium"].dropped) == (1, 1)


def test_the_time_of_a_load_is_no_waiting_time(clock: Clock) -> None:
    worker = Serving(clock, served=0, max_wait_ms=5000)
    demo = worker.catalogue[_DEMO]
    demo.state = "loading"
    waiting = worker.push(model=_DEMO)
    clock.now += 60
    assert worker.admission.overdue(clock.now) == []
    demo.state, demo.warm_at = "warm", clock.now
    clock.now += 4
    assert worker.admission.overdue(clock.now) == []
    clock.now += 1
    assert worker.admission.overdue(clock.now) == [waiting]


def test_without_a_bound_one_may_wait_for_ever(clock: Clock) -> None:
    worker = Serving(clock, served=0)
    worker.push()
    clock.now += 10_000
    assert worker.admission.overdue(clock.now) == []
