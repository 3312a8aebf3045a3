"""The queue of a worker, beside a list that is sorted by hand."""

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.messages.request import Priority
from worker.request_queue import RequestQueue

_RANK: dict[Priority, int] = {"high": 0, "medium": 1, "low": 2}
_MAX_DEPTH = 5
_LEVELS = st.sampled_from(list(_RANK))


@dataclass(frozen=True, slots=True)
class Waiting:
    number: int
    level: Priority


class QueueBesideAList(RuleBasedStateMachine):
    """Whatever is done, the queue holds what a stably sorted list holds."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: RequestQueue[Waiting] = RequestQueue(_MAX_DEPTH)
        self.expected: list[Waiting] = []
        self.pushed = 0

    @rule(level=_LEVELS)
    def push(self, level: Priority) -> None:
        self.pushed += 1
        request = Waiting(self.pushed, level)
        has_room = len(self.expected) < _MAX_DEPTH
        assert self.queue.push(request) is has_room
        if has_room:
            self.expected.append(request)
            self.expected.sort(key=lambda waiting: _RANK[waiting.level])

    @rule()
    def pop_any(self) -> None:
        first = self.expected.pop(0) if self.expected else None
        assert self.queue.pop(lambda _: True) == first

    @rule(remainder=st.integers(0, 2))
    def pop_the_first_that_fits(self, remainder: int) -> None:
        def fits(request: Waiting) -> bool:
            return request.number % 3 == remainder

        first = next(filter(fits, self.expected), None)
        assert self.queue.pop(fits) == first
        if first is not None:
            self.expected.remove(first)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.expected))
        assert self.queue.remove(request)
        self.expected.remove(request)

    @rule(level=_LEVELS)
    def remove_a_stranger(self, level: Priority) -> None:
        assert not self.queue.remove(Waiting(0, level))

    @invariant()
    def both_hold_the_same(self) -> None:
        assert list(self.queue) == self.expected
        assert len(self.queue) == len(self.expected)
        assert self.queue.full is (len(self.expected) == _MAX_DEPTH)


test_the_queue_always_holds_what_a_sorted_list_holds = QueueBesideAList.TestCase


def test_high_overtakes_medium_and_low_and_equals_keep_their_order() -> None:
    queue: RequestQueue[Waiting] = RequestQueue(10)
    levels: list[Priority] = ["low", "medium", "high", "low", "high", "medium"]
    for number, level in enumerate(levels):
        queue.push(Waiting(number, level))
    popped = [queue.pop(lambda _: True) for _ in levels]
    assert [request.number for request in popped if request] == [2, 4, 1, 5, 0, 3]


@pytest.mark.parametrize("depth", [1, 3])
def test_a_full_queue_takes_nothing_until_something_left(depth: int) -> None:
    queue: RequestQueue[Waiting] = RequestQueue(depth)
    assert all(queue.push(Waiting(number, "medium")) for number in range(depth))
    assert not queue.push(Waiting(depth, "high"))
    queue.pop(lambda _: True)
    assert queue.push(Waiting(depth, "high"))
    assert len(queue) == depth
