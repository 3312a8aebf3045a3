"""Engines are told of those who will come next, and when one will not."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from shared.ids import RequestId
from tests.worker.recording_engine import RecordingEngine
from tests.worker.scheduling.test_admission import Admitting
from tests.worker.test_giving_back import Scheduled
from tests.worker.values import CLIENT, TINY
from tests.worker.virtual_time import Clock
from worker.link.facts import SequenceOutput, StepCompleted
from worker.link.orders import CancelPrefixPrefetch, Order, PrefetchPrefix, SubmitSequence
from worker.requests.active_request import ActiveRequest


def told_in(given: Sequence[Order]) -> list[int]:
    """Sequences of which an engine was told; negative ones it was to forget."""
    return [
        order.order.sequence if isinstance(order, PrefetchPrefix) else -order.sequence
        for order in given
        if isinstance(order, PrefetchPrefix | CancelPrefixPrefetch)
    ]


def told(engine: RecordingEngine) -> list[int]:
    """Since somebody looked."""
    orders = told_in(engine.orders)
    engine.orders.clear()
    return orders


def number(request: ActiveRequest) -> int:
    return request.choices[0].sequence


def full(*, engines: int = 1, rows: int = 1) -> Admitting:
    """Every engine runs as much as it may."""
    worker = Admitting(engines, batching={"max_batch_size": rows})
    for _ in range(engines * rows):
        worker.push("high")
    assert len(worker.admit()) == engines * rows
    return worker


def test_the_first_two_in_the_order_of_the_queue_are_foreseen() -> None:
    worker = full()
    low, medium, other, high = (worker.push(p) for p in ("low", "medium", "medium", "high"))
    worker.admission.prefetch()
    assert told(worker.engines[0]) == [number(high), number(medium)]
    worker.admission.prefetch()
    assert told(worker.engines[0]) == []
    worker.admission.leave_queue(high)
    assert told(worker.engines[0]) == [-number(high)]
    worker.admission.prefetch()
    assert told(worker.engines[0]) == [number(other)]
    worker.admission.leave_queue(medium)
    worker.admission.prefetch()
    assert told(worker.engines[0]) == [-number(medium), number(low)]


def test_who_is_overtaken_is_forgotten_until_it_is_next_again() -> None:
    worker = full()
    first, second = worker.push(), worker.push()
    worker.admission.prefetch()
    urgent = worker.push("high")
    assert told(worker.engines[0]) == [number(first), number(second)]
    worker.admission.prefetch()
    assert told(worker.engines[0]) == [-number(second), number(urgent)]
    worker.admission.leave_queue(urgent)
    worker.admission.prefetch()
    assert told(worker.engines[0]) == [-number(urgent), number(second)]


def test_who_is_admitted_is_not_forgotten_by_the_engine_that_takes_it() -> None:
    worker = Admitting(batching={"max_batch_size": 1})
    running, waiting = worker.push(), worker.push()
    assert worker.admit() == [running]
    worker.admission.prefetch()
    assert told(worker.engines[0]) == [number(waiting)]
    worker.end(running)
    assert worker.admit() == [waiting]
    worker.admission.prefetch()
    assert told(worker.engines[0]) == []


def test_of_several_engines_each_has_its_own_and_another_one_may_be_faster() -> None:
    worker = full(engines=2)
    waiting = [worker.push() for _ in range(5)]
    worker.admission.prefetch()
    one, other = worker.engines
    assert told(one) == [number(waiting[0]), number(waiting[2])]
    assert told(other) == [number(waiting[1]), number(waiting[3])]
    worker.admission.release_slot(other.index, TINY)
    assert worker.admit() == [waiting[0]]
    worker.admission.prefetch()
    assert told(one) == [-number(waiting[0]), number(waiting[4])]
    assert told(other) == []


def test_who_only_counts_or_waits_for_its_model_is_not_foreseen() -> None:
    worker = full()
    worker.push(count_only=True)
    waiting = worker.push()
    worker.admission.prefetch()
    assert told(worker.engines[0]) == [number(waiting)]
    worker.catalogue[TINY].engines.clear()
    worker.admission.prefetch()
    assert told(worker.engines[0]) == [-number(waiting)]


def test_of_several_choices_the_first_is_told() -> None:
    worker = full()
    request = worker.push(choices=3)
    worker.admission.prefetch()
    assert told(worker.engines[0]) == [number(request)]
    worker.admission.leave_queue(request)
    assert told(worker.engines[0]) == [-number(request)]


# Within a scheduler.


class Serving(Scheduled):
    """One request runs and another one waits, which was foreseen."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        max_wait_ms: int | None = None,
        **waiting: object,
    ) -> None:
        super().__init__(folder, batch=1, max_wait_ms=max_wait_ms)
        self.orders: list[Order] = []
        monkeypatch.setattr(self.engine, "send", self.orders.append)
        self.accept("running")
        self.accept("waiting", **waiting)
        self.sequence = number(self.request("waiting"))
        assert told_in(self.orders) == [self.sequence]
        self.orders.clear()

    def request(self, request_id: str) -> ActiveRequest:
        found = self.scheduler.find((CLIENT, RequestId(request_id)))
        assert found is not None
        return found


@pytest.mark.parametrize("silent", [False, True])
def test_who_is_cancelled_is_forgotten(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    worker = Serving(tiny_model, monkeypatch)
    assert worker.scheduler.cancel(worker.request("waiting").key, 0, silent=silent)
    assert worker.orders == [CancelPrefixPrefetch(worker.sequence)]


@pytest.mark.parametrize("requeued", [False, True])
def test_who_waits_too_long_is_forgotten(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, requeued: bool
) -> None:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    max_wait_ms, timeout_ms = (5000, 60_000) if requeued else (None, 5000)
    worker = Serving(tiny_model, monkeypatch, max_wait_ms=max_wait_ms, timeout_ms=timeout_ms)
    clock.now += 6
    worker.scheduler.tick()
    assert worker.orders == [CancelPrefixPrefetch(worker.sequence)]


def test_who_has_its_turn_is_submitted_and_not_forgotten(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Serving(tiny_model, monkeypatch)
    running = number(worker.request("running"))
    end = SequenceOutput(running, 0, [7], "x", "length")
    worker.scheduler.on_fact(worker.engine, StepCompleted([end]))
    (order,) = worker.orders
    assert isinstance(order, SubmitSequence) and order.sequence == worker.sequence


def test_a_new_engine_is_told_of_those_who_still_wait(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Serving(tiny_model, monkeypatch)
    worker.accept("last")
    last = number(worker.request("last"))
    assert told_in(worker.orders) == [last]
    worker.die()
    worker.scheduler.tick()
    assert told_in(worker.orders) == [last], "while it restarts it is told nothing"
    worker.orders.clear()
    worker.engine.state = "running"
    worker.scheduler.models.catalogue[TINY].engines.add(worker.engine.index)
    worker.scheduler.tick()
    assert [type(order) for order in worker.orders] == [SubmitSequence, PrefetchPrefix]
    assert told_in(worker.orders) == [last]
