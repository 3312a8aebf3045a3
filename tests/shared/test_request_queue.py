"""The queue of a worker, beside a list that is sorted by hand."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.ids import ClientName
from shared.messages.base import PRIORITIES, Priority
from shared.request_queue import PriorityQueue

_RANK: dict[Priority, int] = {"high": 0, "medium": 1, "low": 2}
_MAX_DEPTH = 5
_EVE, _ADA = ClientName("eve"), ClientName("ada")
_LEVELS = st.sampled_from(list(_RANK))


@dataclass(frozen=True, slots=True)
class Waiting:
    number: int
    level: Priority
    client: ClientName = _EVE


def _kind(request: Waiting) -> int:
    return request.number % 2


class QueueBesideAList(RuleBasedStateMachine):
    """Whatever is done, the queue holds what a stably sorted list holds."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: PriorityQueue[Waiting, int] = PriorityQueue(
            _MAX_DEPTH, kind=_kind, promote_after_s=10
        )
        self.expected: list[tuple[Waiting, int, float]] = []  # with its rank, and since when
        self.pushed = 0
        self.now = 0.0

    @property
    def waiting(self) -> list[Waiting]:
        return [request for request, _, _ in self.expected]

    @rule(level=_LEVELS)
    def push(self, level: Priority) -> None:
        self.pushed += 1
        request = Waiting(self.pushed, level)
        has_room = len(self.expected) < _MAX_DEPTH
        assert self.queue.push(request, self.now) is (None if has_room else request)
        if has_room:
            self._insert(request, _RANK[level])

    @rule(seconds=st.sampled_from([1, 6, 25]))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        long_waiting = [
            entry for entry in self.expected if entry[1] > 0 and self.now - entry[2] >= 10
        ]
        for entry in long_waiting:
            self.expected.remove(entry)
        for request, rank, _ in long_waiting:
            self._insert(request, rank - 1)
        assert self.queue.promote(self.now) == [request for request, _, _ in long_waiting]

    @rule()
    def pop_any(self) -> None:
        first = self.waiting[0] if self.expected else None
        assert self.queue.pop() == first
        self.expected = self.expected[1:]

    @rule(kinds=st.sets(st.integers(0, 1)), remainder=st.integers(0, 2))
    def pop_the_first_that_fits(self, kinds: set[int], remainder: int) -> None:
        def ready(request: Waiting) -> bool:
            return request.number % 3 == remainder

        fitting = [each for each in self.waiting if ready(each) and _kind(each) in kinds]
        first = fitting[0] if fitting else None
        assert list(self.queue.upcoming(kinds.__contains__, ready)) == fitting
        assert self.queue.pop(kinds.__contains__, ready) == first
        self.expected = [entry for entry in self.expected if entry[0] != first]

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.expected))
        assert self.queue.remove(entry[0])
        self.expected.remove(entry)

    @rule(level=_LEVELS)
    def remove_a_stranger(self, level: Priority) -> None:
        assert not self.queue.remove(Waiting(0, level))

    @invariant()
    def both_hold_the_same(self) -> None:
        assert list(self.queue) == self.waiting
        assert len(self.queue) == len(self.expected)
        full = len(self.expected) == _MAX_DEPTH
        assert all((self.queue.capacity(level) == 0) is full for level in PRIORITIES)

    @invariant()
    def who_comes_is_told_in_order(self) -> None:
        assert list(self.queue.upcoming()) == self.waiting

    def _insert(self, request: Waiting, rank: int) -> None:
        self.expected.append((request, rank, self.now))
        self.expected.sort(key=lambda entry: entry[1])


test_the_queue_always_holds_what_a_sorted_list_holds = QueueBesideAList.TestCase


def _queue(*levels: Priority, **how: Any) -> tuple[PriorityQueue[Waiting, int], list[Waiting]]:
    """A full queue, and who is in it, in order of arrival."""
    queue: PriorityQueue[Waiting, int] = PriorityQueue(len(levels), kind=_kind, **how)
    requests = [Waiting(number, level) for number, level in enumerate(levels)]
    assert all(queue.push(request, 0.0) is None for request in requests)
    return queue, requests


def _popped(queue: PriorityQueue[Waiting, int]) -> list[int]:
    return [request.number for _ in range(len(queue)) if (request := queue.pop())]


@pytest.mark.parametrize(("levels", "order"), [(1, [0, 1, 2, 3]), (2, [2, 0, 1, 3])])
def test_with_fewer_levels_the_lower_priorities_are_equals(levels: int, order: list[int]) -> None:
    queue, _ = _queue("low", "medium", "high", "low", levels=levels)
    assert _popped(queue) == order


# When it is full.


def test_told_to_drop_it_drops_the_newest_of_the_lowest_priority() -> None:
    queue, requests = _queue("low", "medium", "low", "high", reject_when_full=False)
    assert queue.push(Waiting(4, "medium"), 1.0) is requests[2]
    assert queue.push(Waiting(5, "high"), 1.0) is requests[0]
    assert queue.push(Waiting(6, "high"), 1.0).number == 4  # type: ignore[union-attr]
    assert _popped(queue) == [3, 5, 6, 1]


@pytest.mark.parametrize("level", ["medium", "low"])
def test_who_comes_last_drops_nobody_of_its_own_priority(level: Priority) -> None:
    queue, _ = _queue("high", "medium", reject_when_full=False)
    late = Waiting(2, level)
    assert queue.push(late, 1.0) is late
    assert _popped(queue) == [0, 1]


@pytest.mark.parametrize("level", PRIORITIES)
def test_above_a_depth_that_was_lowered_who_comes_is_refused(level: Priority) -> None:
    queue, _ = _queue("high", "high", "low", reject_when_full=False)
    queue.configure(2)
    late = Waiting(3, level)
    assert queue.push(late, 1.0) is late
    assert _popped(queue) == [0, 1, 2]


def test_one_that_rose_is_still_dropped_as_what_it_came() -> None:
    queue, requests = _queue("low", "medium", reject_when_full=False)
    assert queue.promote(10.0) == [requests[1], requests[0]]
    assert queue.push(Waiting(2, "medium"), 11.0) is requests[0]


# Against starvation.


def test_who_waits_long_rises_a_level_at_a_time_behind_those_who_are_there() -> None:
    queue, _ = _queue("low", "medium", "high")
    assert queue.promote(9.9) == []
    queue.promote(10.0)
    assert [request.number for request in queue] == [2, 1, 0]
    queue.pop()
    assert queue.push(Waiting(3, "medium"), 10.0) is None
    assert _popped(queue) == [1, 0, 3]


def test_low_is_served_in_time_however_many_high_ones_come() -> None:
    queue: PriorityQueue[Waiting, int] = PriorityQueue(100, kind=_kind, promote_after_s=10)
    queue.push(Waiting(0, "low"), 0.0)
    served: list[int] = []
    for second in range(1, 60):
        queue.push(Waiting(second, "high"), float(second))
        queue.push(Waiting(100 + second, "high"), float(second))
        queue.promote(float(second))
        served += [request.number for _ in "x" if (request := queue.pop())]
    assert 0 in served


# However many wait.


def test_a_kind_without_a_slot_is_asked_about_once_and_none_of_its_requests() -> None:
    queue: PriorityQueue[Waiting, int] = PriorityQueue(2000, kind=_kind)
    for number in range(1000):
        assert queue.push(Waiting(number, "high"), 0.0) is None
    kinds, requests = [], []

    def admissible(kind: int) -> bool:
        kinds.append(kind)
        return kind == 1

    def ready(request: Waiting) -> bool:
        requests.append(request.number)
        return True

    assert queue.pop(admissible, ready) == Waiting(1, "high")
    assert sorted(kinds) == [0, 1]
    assert requests == list(range(1, 16, 2))


# Prompts that share a prefix.


def test_who_shares_with_what_runs_goes_before_its_equals_but_not_before_its_betters() -> None:
    queue, _ = _queue("medium", "medium", "high", "medium", "low")
    affinity = {0: 0, 1: 2, 2: 0, 3: 3, 4: 9}
    upcoming = [r.number for r in queue.upcoming(affinity=lambda r: affinity[r.number])]
    assert upcoming == [2, 3, 1, 0, 4]
    order = [queue.pop(affinity=lambda r: affinity[r.number]) for _ in range(5)]
    assert [request.number for request in order if request] == [2, 3, 1, 0, 4]


def test_nobody_is_passed_more_than_a_few_times() -> None:
    queue: PriorityQueue[Waiting, int] = PriorityQueue(100, kind=_kind)
    queue.push(Waiting(0, "medium"), 0.0)
    served: list[int] = []
    for number in range(1, 20):
        queue.push(Waiting(number, "medium"), 0.0)
        request = queue.pop(affinity=lambda r: r.number)
        served += [request.number] if request else []
    assert served.index(0) == 4


def test_of_many_only_the_first_few_may_be_preferred() -> None:
    queue: PriorityQueue[Waiting, int] = PriorityQueue(100, kind=_kind)
    for number in range(20):
        queue.push(Waiting(number, "high"), 0.0)
    request = queue.pop(affinity=lambda r: r.number)
    assert request is not None
    assert request.number == 7


def test_the_last_places_are_kept_for_higher_priorities() -> None:
    queue: PriorityQueue[Waiting, int] = PriorityQueue(100, kind=_kind)
    rooms = {"low": 90, "medium": 95, "high": 100}
    for level in ("low", "medium", "high"):
        taken = 0
        while queue.push(Waiting(taken, level, ClientName(f"c-{taken}")), 0.0) is None:
            taken += 1
        assert len(queue) == rooms[level]
        assert queue.capacity(level) == 0


def test_a_queue_that_drops_has_room_for_whoever_is_above_somebody() -> None:
    queue, _ = _queue("low", "medium", "medium", reject_when_full=False)
    assert [queue.capacity(level) for level in PRIORITIES] == [3, 1, 0]


# Several clients.


def _pushed(queue: PriorityQueue[Waiting, int], *clients: ClientName) -> list[Waiting]:
    requests = [Waiting(number, "medium", client) for number, client in enumerate(clients)]
    assert all(queue.push(request, 0.0) is None for request in requests)
    return requests


def test_clients_take_turns_however_many_requests_one_has() -> None:
    queue: PriorityQueue[Waiting, int] = PriorityQueue(100, kind=_kind)
    _pushed(queue, *[_EVE] * 4, _ADA, _ADA)
    assert _popped(queue) == [0, 4, 1, 5, 2, 3]


def test_a_client_that_comes_is_next_however_many_others_wait() -> None:
    queue: PriorityQueue[Waiting, int] = PriorityQueue(100, kind=_kind)
    _pushed(queue, *[_EVE] * 50)
    for _ in range(20):
        queue.pop()
    newcomer = Waiting(99, "medium", _ADA)
    assert queue.push(newcomer, 1.0) is None
    assert queue.pop() == newcomer


def test_nothing_is_saved_up_while_a_client_is_absent() -> None:
    queue: PriorityQueue[Waiting, int] = PriorityQueue(100, kind=_kind)
    _pushed(queue, _ADA, *[_EVE] * 12)
    for _ in range(9):
        queue.pop()
    for number in range(4):
        queue.push(Waiting(20 + number, "medium", _ADA), 1.0)
    assert _popped(queue) == [20, 9, 21, 10, 22, 11, 23, 12]


def test_a_client_that_cancels_what_it_has_waits_for_that_no_longer() -> None:
    queue: PriorityQueue[Waiting, int] = PriorityQueue(100, kind=_kind)
    cancelled = _pushed(queue, *[_ADA] * 5)
    eve = [Waiting(10 + number, "medium", _EVE) for number in range(3)]
    assert all(queue.push(request, 0.0) is None for request in eve)
    assert all(queue.remove(request) for request in cancelled)
    queue.push(Waiting(20, "medium", _ADA), 0.0)
    assert _popped(queue) == [10, 11, 20, 12]


def test_who_shares_a_prefix_does_not_overtake_a_client_in_an_earlier_turn() -> None:
    queue: PriorityQueue[Waiting, int] = PriorityQueue(100, kind=_kind)
    _pushed(queue, _EVE, _EVE, _EVE, _ADA)
    affinity = {0: 0, 1: 5, 2: 9, 3: 0}
    order = [queue.pop(affinity=lambda r: affinity[r.number]) for _ in range(4)]
    assert [request.number for request in order if request] == [0, 3, 2, 1]


def test_some_slots_are_for_clients_that_have_few() -> None:
    queue: PriorityQueue[Waiting, int] = PriorityQueue(100, kind=_kind)
    while queue.push(Waiting(len(queue), "high", _EVE), 0.0) is None:
        pass
    assert len(queue) == 95
    assert (queue.capacity("high", _EVE), queue.capacity("high", _ADA)) == (0, 5)
    assert queue.push(Waiting(95, "high", _ADA), 0.0) is None


def test_many_names_leave_nothing_behind() -> None:
    queue: PriorityQueue[Waiting, int] = PriorityQueue(100, kind=_kind)
    for number in range(5000):
        queue.push(Waiting(number, "medium", ClientName(f"c-{number}")), 0.0)
        queue.pop()
    assert len(queue._levels[1]._turns) <= 1001
    assert not queue._held
