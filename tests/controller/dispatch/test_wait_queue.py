"""Who waits, who gets a place, who leaves: values in, values out."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.dispatch.wait_queue import WaitQueue
from controller.requests.metrics import DispatchCounts
from controller.requests.request import TrackedRequest
from controller.routing import Ineligibility, NoRoute, RouteQuery
from shared.ids import WorkerId
from shared.messages.base import PRIORITIES, Priority
from shared.settings.controller import WaitingRoomSettings as Limits
from tests.controller.values import DEMO, request

_LEVELS = st.sampled_from(PRIORITIES)


def full(reason: str = "is full") -> NoRoute:
    return NoRoute(RouteQuery([DEMO]), {WorkerId("mac"): Ineligibility("queue_full", reason, 100)})


class Hall:
    """A wait queue, and places of several pools; the last one of each is not for low ones.

    Attributes:
        guests: all who came, in order.
        looks: the numbers of who looked for a place, in order.
        placed: the numbers of who found one.
    """

    def __init__(self, **limits: Any) -> None:
        self.totals = DispatchCounts()
        self.queue = WaitQueue(Limits(**limits), self.totals)
        self.free: Counter[str] = Counter()
        self.guests: list[TrackedRequest] = []
        self.looks: list[int] = []
        self.placed: list[int] = []
        self._pools: dict[TrackedRequest, str] = {}

    def come(
        self, level: Priority = "medium", pool: str = "a", *, known: bool = True
    ) -> TrackedRequest | None:
        """Returns for whom there is no room.

        Args:
            known: whether that pool may be said, so that it is of the kind of others of it.
        """
        guest = request(str(len(self.guests)), priority=level)
        guest.state, guest.no_route = "queued", full()
        guest.waiting_kind = pool if known else None
        self.guests.append(guest)
        self._pools[guest] = pool
        return self.queue.add(guest, 0.0)

    def look(self) -> list[int]:
        """Who looks for a place."""
        self.looks.clear()
        self.queue.retry(self._place_again)
        return self.looks

    def pool(self, guest: TrackedRequest) -> str:
        return self._pools[guest]

    def numbers(self, guests: Sequence[TrackedRequest]) -> list[int]:
        return [self.guests.index(guest) for guest in guests]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Who waits, who came to wait, who of them left in vain."""
        assert self.totals.waiting == len(self.queue)
        return self.totals.waiting, self.totals.waited, self.totals.unplaced

    def _place_again(self, guest: TrackedRequest) -> None:
        number = self.guests.index(guest)
        self.looks.append(number)
        if has_place(self.free, guest.level, self.pool(guest)):
            self.free[self.pool(guest)] -= 1
            guest.state = "offered"
            self.placed.append(number)
            self.queue.remove(guest)
        else:
            guest.no_route = full(f"was full for {number}")


def has_place(free: Counter[str], level: Priority, pool: str) -> bool:
    return free[pool] > (level == "low")


@pytest.fixture
def hall() -> Hall:
    return Hall(max_depth=4)


# Order.


def test_places_go_by_priority_and_then_by_arrival(hall: Hall) -> None:
    levels: list[Priority] = ["low", "medium", "high", "medium"]
    assert [hall.come(level, known=False) for level in levels] == [None] * 4
    hall.free["a"] = 2
    assert (hall.look(), hall.placed) == ([2, 1, 3, 0], [2, 1])
    hall.free["a"] = 9
    assert (hall.look(), hall.placed) == ([3, 0], [2, 1, 3, 0])
    assert hall.counts == (0, 4, 0)


def test_where_one_finds_no_place_those_alike_are_not_tried(hall: Hall) -> None:
    came: list[tuple[Priority, str]] = [
        ("medium", "a"), ("medium", "a"), ("low", "a"), ("medium", "b")
    ]  # fmt: skip
    for level, pool in came:
        hall.come(level, pool)
    hall.free["b"] = 1
    assert (hall.look(), hall.placed) == ([0, 3, 2], [3])


def test_where_one_finds_a_place_those_alike_are_tried(hall: Hall) -> None:
    for _ in range(3):
        hall.come()
    hall.free["a"] = 1
    assert (hall.look(), hall.placed) == ([0, 1], [0])


def test_of_whom_nobody_is_alike_each_is_tried(hall: Hall) -> None:
    for _ in range(3):
        hall.come(known=False)
    assert hall.look() == [0, 1, 2]


def test_a_new_one_is_told_of_those_it_must_not_overtake(hall: Hall) -> None:
    assert hall.queue.ahead_of("low", "a") is None
    hall.come("medium", "a")
    hall.come("high", "b", known=False)
    told = [hall.queue.ahead_of(level, "a") for level in PRIORITIES]
    assert [error and error.code for error in told] == [None, "queue_full", "queue_full"]
    assert hall.queue.ahead_of("low", "b") is None
    assert hall.queue.ahead_of("low", None) is None


def test_it_is_told_the_last_reason_of_who_is_ahead(hall: Hall) -> None:
    hall.come()
    hall.look()
    error = hall.queue.ahead_of("medium", "a")
    assert error is not None and "was full for 0" in error.message


# Leaving.


def test_when_it_is_full_the_newest_of_the_lowest_priority_leaves(hall: Hall) -> None:
    levels: list[Priority] = ["low", "medium", "low", "high"]
    for level in levels:
        hall.come(level)
    assert hall.come("high") is hall.guests[2]
    assert hall.come("medium") is hall.guests[0]
    assert hall.counts == (4, 6, 2)


def test_who_finds_no_room_to_wait_has_not_waited(hall: Hall) -> None:
    for _ in range(4):
        hall.come("medium")
    assert hall.come("medium") is hall.guests[4]
    assert hall.come("low") is hall.guests[5]
    assert hall.counts == (4, 4, 0)


def test_whether_it_is_switched_on_is_for_who_sends_requests_there_to_say() -> None:
    hall = Hall(enabled=False)
    assert (hall.queue.enabled, hall.come()) == (False, None)
    hall.queue.configure(Limits(enabled=True))
    assert hall.queue.enabled


def test_with_other_limits_who_waits_already_stays(hall: Hall) -> None:
    for _ in range(3):
        hall.come()
    hall.queue.configure(Limits(max_depth=2, max_wait_ms=700))
    assert (hall.counts, hall.queue.max_wait_s) == ((3, 3, 0), 0.7)
    hall.queue.configure(Limits(max_depth=4))
    assert hall.come() is None
    assert hall.come() is hall.guests[4]


def test_who_left_leaves_once_and_only_then_in_vain_if_it_waited(hall: Hall) -> None:
    hall.come()
    guest, stranger = hall.guests[0], request("other")
    hall.queue.remove(stranger, unplaced=True)
    assert hall.counts == (1, 1, 0)
    for _ in range(2):
        hall.queue.remove(guest, unplaced=True)
        assert hall.counts == (0, 1, 1)
    assert hall.look() == []


def test_one_whose_contents_are_gone_may_leave_though_it_has_no_priority(hall: Hall) -> None:
    ended = request("ended")
    ended.forget_contents()
    hall.queue.remove(ended)
    assert hall.counts == (0, 0, 0)


class RoomBesideAList(RuleBasedStateMachine):
    """Whatever happens, each guest has the end that it has in a list that is sorted by hand; so
    nobody is lost, nobody gets two places, and nobody overtakes."""

    DEPTH = 4

    def __init__(self) -> None:
        super().__init__()
        self.hall = Hall(max_depth=self.DEPTH)
        self.waiting: list[TrackedRequest] = []
        self.free: Counter[str] = Counter()
        self.waited = self.unplaced = 0

    @rule(level=_LEVELS, pool=st.sampled_from("ab"), known=st.booleans())
    def come(self, level: Priority, pool: str, known: bool) -> None:
        if known:
            self._must_not_overtake(level, pool)
        loser = self.hall.come(level, pool, known=known)
        guest = self.hall.guests[-1]
        self.waiting = sorted([*self.waiting, guest], key=self._turn)
        expected = self.waiting.pop() if len(self.waiting) > self.DEPTH else None
        assert loser is expected
        self.waited += loser is not guest
        self.unplaced += loser is not None and loser is not guest

    @rule(pool=st.sampled_from("ab"), count=st.integers(1, 3))
    def make_room(self, pool: str, count: int) -> None:
        self.free[pool] += count
        self.hall.free[pool] += count

    @rule()
    def look(self) -> None:
        self.hall.placed.clear()
        self.hall.look()
        served = []
        for guest in list(self.waiting):
            pool = self.hall.pool(guest)
            if has_place(self.free, guest.level, pool):
                self.free[pool] -= 1
                self.waiting.remove(guest)
                served.append(guest)
        assert self.hall.placed == self.hall.numbers(served)

    @precondition(lambda self: self.hall.guests)
    @rule(data=st.data(), in_vain=st.booleans())
    def give_up(self, data: st.DataObject, in_vain: bool) -> None:
        guest = data.draw(st.sampled_from(self.hall.guests))
        self.hall.queue.remove(guest, unplaced=in_vain)
        if guest in self.waiting:
            self.waiting.remove(guest)
            self.unplaced += in_vain

    @invariant()
    def both_say_the_same(self) -> None:
        assert self.hall.counts == (len(self.waiting), self.waited, self.unplaced)
        assert self.hall.free == self.free

    def teardown(self) -> None:
        """With room for all, all that wait are served."""
        for pool in "ab":
            self.make_room(pool, len(self.waiting) + 1)
        self.look()
        self.both_say_the_same()
        assert self.waiting == []

    def _must_not_overtake(self, level: Priority, pool: str) -> None:
        alike = [guest for guest in self.waiting if guest.waiting_kind == pool]
        ahead = [g for g in alike if PRIORITIES.index(g.level) <= PRIORITIES.index(level)]
        assert (self.hall.queue.ahead_of(level, pool) is not None) is bool(ahead)

    def _turn(self, guest: TrackedRequest) -> tuple[int, int]:
        return PRIORITIES.index(guest.level), self.hall.guests.index(guest)


test_a_room_never_differs_from_a_sorted_list = RoomBesideAList.TestCase
