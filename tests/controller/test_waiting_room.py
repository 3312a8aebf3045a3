"""Who waits, who gets a place, who leaves: on a loop whose clock stands still until it is set."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.requests.waiting_room import WaitingRoom
from controller.routing import Need, NoRoute, Obstacle
from shared.ids import WorkerId
from shared.messages.request import PRIORITIES, Priority
from shared.settings.tree import WaitingRoom as Limits
from tests.controller.values import DEMO

_LOOKED_S = 1 / 32
"""Longer than changes are gathered before somebody looks."""

_LEVELS = st.sampled_from(PRIORITIES)


class StandingLoop(asyncio.SelectorEventLoop):
    """Its time is what it is set to."""

    now = 0.0

    def time(self) -> float:
        return self.now


def full(reason: str = "is full") -> NoRoute:
    return NoRoute(Need([DEMO]), {WorkerId("mac"): Obstacle("queue_full", reason, 100)})


@dataclass(slots=True, eq=False)
class Guest:
    """
    Attributes:
        pool: whose places serve it.
        known: whether that may be said, so that it is of the kind of others of that pool.
    """

    number: int
    level: Priority
    pool: str
    known: bool
    until: float
    task: "asyncio.Task[str | None] | None" = None

    @property
    def end(self) -> str:
        assert self.task is not None
        if not self.task.done():
            return "waits"
        if self.task.cancelled():
            return "cancelled"
        if isinstance(self.task.exception(), NoRoute):
            return "left"
        return self.task.result() or "dismissed"


class Hall:
    """A waiting room, and places of several pools; the last one of each is not for low ones.

    Attributes:
        looks: who looked for a place, in order.
    """

    def __init__(self, **limits: Any) -> None:
        self.loop = StandingLoop()
        self.room: WaitingRoom[str] = WaitingRoom(Limits(**limits), self.loop.time)
        self.free: Counter[str] = Counter()
        self.looks: list[int] = []
        self.guests: list[Guest] = []

    def come(
        self,
        level: Priority = "medium",
        pool: str = "a",
        *,
        known: bool = True,
        wait_s: float = 5.0,
        find: Callable[[], str] | None = None,
    ) -> Guest:
        guest = Guest(len(self.guests), level, pool, known, self.loop.now + wait_s)
        self.guests.append(guest)
        guest.task = self.loop.create_task(
            self.room.wait(
                guest,
                find or (lambda: self._find(guest)),
                full(),
                level=level,
                kind=pool if known else None,
                until=guest.until,
            )
        )
        self.settle()
        return guest

    def pass_time(self, seconds: float) -> None:
        self.loop.now += seconds
        self.settle()

    def do(self, *acts: Callable[[], object]) -> None:
        """Without a pause between them."""

        async def all_of_them() -> None:
            for act in acts:
                act()

        self.loop.run_until_complete(all_of_them())
        self.settle()

    def look(self) -> list[int]:
        """Who looked for a place after a change."""
        self.looks.clear()
        self.do(self.room.nudge)
        self.pass_time(_LOOKED_S)
        return self.looks

    def settle(self) -> None:
        for _ in range(5):
            self.loop.run_until_complete(_one_turn())

    def close(self) -> None:
        for guest in self.guests:
            if guest.task is not None:
                guest.task.cancel()
        self.settle()
        self.loop.close()

    def _find(self, guest: Guest) -> str:
        self.looks.append(guest.number)
        if not has_place(self.free, guest):
            raise full(f"was full for {guest.number}")
        self.free[guest.pool] -= 1
        return f"a place in {guest.pool}"


def _one_turn() -> Coroutine[None, None, None]:
    return asyncio.sleep(0)


def has_place(free: Counter[str], guest: Guest) -> bool:
    return free[guest.pool] > (guest.level == "low")


@pytest.fixture
def hall() -> Iterator[Hall]:
    made = Hall(max_depth=4)
    yield made
    made.close()


def ends(*guests: Guest) -> list[str]:
    return [guest.end for guest in guests]


# Order.


def test_places_go_by_priority_and_then_by_arrival(hall: Hall) -> None:
    guests = [hall.come(level, known=False) for level in ("low", "medium", "high", "medium")]
    hall.free["a"] = 2
    assert hall.look() == [2, 1, 3, 0]
    assert ends(*guests) == ["waits", "a place in a", "a place in a", "waits"]
    hall.free["a"] = 9
    assert hall.look() == [3, 0]
    assert (len(hall.room), hall.room.came, hall.room.left) == (0, 4, 0)


def test_where_one_finds_no_place_those_alike_are_not_tried(hall: Hall) -> None:
    for level, pool in (("medium", "a"), ("medium", "a"), ("low", "a"), ("medium", "b")):
        hall.come(level, pool)  # type: ignore[arg-type]
    hall.free["b"] = 1
    assert hall.look() == [0, 3, 2]
    assert hall.guests[3].end == "a place in b"


def test_of_whom_nobody_is_alike_each_is_tried(hall: Hall) -> None:
    for _ in range(3):
        hall.come(known=False)
    assert hall.look() == [0, 1, 2]


def test_a_new_one_is_told_of_those_it_must_not_overtake(hall: Hall) -> None:
    assert hall.room.ahead_of("low", "a") is None
    hall.come("medium", "a")
    hall.come("high", "b", known=False)
    told = [hall.room.ahead_of(level, "a") for level in PRIORITIES]
    assert [error and error.code for error in told] == [None, "queue_full", "queue_full"]
    assert hall.room.ahead_of("low", "b") is None
    assert hall.room.ahead_of("low", None) is None


# Leaving.


def test_when_it_is_full_the_newest_of_the_lowest_priority_leaves(hall: Hall) -> None:
    first, second, third, fourth = [
        hall.come(level) for level in ("low", "medium", "low", "high")
    ]  # fmt: skip
    hall.come("high")
    assert ends(first, second, third, fourth) == ["waits", "waits", "left", "waits"]
    hall.come("medium")
    assert first.end == "left" and len(hall.room) == 4
    assert (hall.room.came, hall.room.left) == (6, 2)


def test_who_finds_no_room_to_wait_is_told_why_there_is_no_place(hall: Hall) -> None:
    for _ in range(4):
        hall.come("medium")
    late = hall.come("medium")
    assert late.end == "left" and late.task is not None
    error = late.task.exception()
    assert isinstance(error, NoRoute) and (error.code, error.retry_after_ms) == ("queue_full", 100)
    assert (len(hall.room), hall.room.came, hall.room.left) == (4, 4, 0)


def test_switched_off_nobody_waits() -> None:
    hall = Hall(enabled=False)
    assert hall.come("high").end == "left"
    assert (len(hall.room), hall.room.came, hall.room.left) == (0, 0, 0)
    hall.close()


def test_when_its_time_is_over_one_leaves_with_the_last_reason(hall: Hall) -> None:
    short, long = hall.come(wait_s=2, known=False), hall.come(wait_s=3, known=False)
    hall.look()
    hall.loop.now = 1.9
    hall.do(hall.room.tick)
    assert ends(short, long) == ["waits", "waits"]
    hall.loop.now = 2.0
    hall.do(hall.room.tick)
    assert ends(short, long) == ["left", "waits"] and short.task is not None
    assert "was full for 0" in str(short.task.exception())
    assert (len(hall.room), hall.room.left) == (1, 1)


def test_who_gives_up_is_gone_whatever_else_happens_to_it(hall: Hall) -> None:
    guest = hall.come()
    assert guest.task is not None
    hall.free["a"] = 1
    hall.loop.now = 9.0
    hall.do(
        guest.task.cancel, hall.room.nudge, hall.room.tick, lambda: hall.room.dismiss(guest)
    )  # fmt: skip
    assert (guest.end, len(hall.room), hall.free["a"]) == ("cancelled", 0, 1)


def test_one_whose_search_fails_does_not_keep_others_waiting(hall: Hall) -> None:
    def fail() -> str:
        raise ValueError("a fault")

    broken, sound = hall.come(find=fail), hall.come()
    hall.free["a"] = 1
    hall.look()
    assert sound.end == "a place in a" and broken.task is not None
    assert isinstance(broken.task.exception(), ValueError)
    assert len(hall.room) == 0


# Looking.


def test_many_changes_are_looked_at_once(hall: Hall) -> None:
    hall.come(known=False)
    hall.do(*[hall.room.nudge] * 100)
    assert hall.looks == []
    hall.pass_time(_LOOKED_S)
    assert hall.looks == [0]
    hall.pass_time(10)
    assert hall.looks == [0]
    assert hall.look() == [0]


class RoomBesideAList(RuleBasedStateMachine):
    """Whatever happens, each guest has the end that it has in a list that is sorted by hand; so
    nobody is lost, nobody gets two places, and nobody overtakes."""

    DEPTH = 4

    def __init__(self) -> None:
        super().__init__()
        self.hall = Hall(max_depth=self.DEPTH)
        self.waiting: list[Guest] = []
        self.expected: dict[Guest, str] = {}
        self.looks_at: float | None = None
        self.free: Counter[str] = Counter()
        self.came = self.left = 0

    @rule(
        level=_LEVELS,
        pool=st.sampled_from("ab"),
        known=st.booleans(),
        wait_s=st.sampled_from([0.0, 2.0, 9.0]),
    )
    def come(self, level: Priority, pool: str, known: bool, wait_s: float) -> None:
        if known:
            self._must_not_overtake(level, pool)
        guest = self.hall.come(level, pool, known=known, wait_s=wait_s)
        self.expected[guest] = "waits"
        self.waiting = sorted([*self.waiting, guest], key=_turn)
        if len(self.waiting) > self.DEPTH:
            loser = self.waiting.pop()
            self.expected[loser] = "left"
            self.left += loser is not guest
            self.came -= loser is guest
        self.came += 1

    @rule(pool=st.sampled_from("ab"), count=st.integers(1, 3))
    def make_room(self, pool: str, count: int) -> None:
        self.free[pool] += count
        self.hall.free[pool] += count

    @rule()
    def nudge(self) -> None:
        self.hall.do(self.hall.room.nudge)
        self._soon()

    @rule(seconds=st.sampled_from([1 / 128, _LOOKED_S, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.hall.pass_time(seconds)
        if self.looks_at is not None and self.hall.loop.now >= self.looks_at:
            self.looks_at = None
            for guest in list(self.waiting):
                if has_place(self.free, guest):
                    self.free[guest.pool] -= 1
                    self._over(guest, f"a place in {guest.pool}")

    @rule()
    def tick(self) -> None:
        self.hall.do(self.hall.room.tick)
        for guest in list(self.waiting):
            if guest.until <= self.hall.loop.now:
                self._over(guest, "left")
                self.left += 1
        self._soon()

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), cancel=st.booleans(), dismiss=st.booleans())
    def give_up(self, data: st.DataObject, cancel: bool, dismiss: bool) -> None:
        guest = data.draw(st.sampled_from(list(self.expected)))
        assert guest.task is not None
        task = guest.task
        acts: list[Callable[[], object]] = []
        if dismiss:
            acts.append(lambda: self.hall.room.dismiss(guest))
        if cancel:
            acts.append(task.cancel)
        if data.draw(st.booleans()):
            acts.reverse()
        self.hall.do(*acts)
        if guest in self.waiting and acts:
            self._over(guest, "cancelled" if cancel else "dismissed")

    @invariant()
    def both_say_the_same(self) -> None:
        assert {guest: guest.end for guest in self.expected} == self.expected
        assert len(self.hall.room) == len(self.waiting) <= self.DEPTH
        assert self.hall.free == self.free
        assert (self.hall.room.came, self.hall.room.left) == (self.came, self.left)

    def teardown(self) -> None:
        """With room for all, all that wait are served."""
        for pool in "ab":
            self.make_room(pool, len(self.waiting) + 1)
        self.nudge()
        self.wait(_LOOKED_S)
        self.both_say_the_same()
        assert self.waiting == []
        self.hall.close()

    def _must_not_overtake(self, level: Priority, pool: str) -> None:
        alike = [guest for guest in self.waiting if guest.known and guest.pool == pool]
        ahead = [g for g in alike if PRIORITIES.index(g.level) <= PRIORITIES.index(level)]
        assert (self.hall.room.ahead_of(level, pool) is not None) is bool(ahead)

    def _soon(self) -> None:
        if self.looks_at is None and self.waiting:
            self.looks_at = self.hall.loop.now + 0.02

    def _over(self, guest: Guest, end: str) -> None:
        self.waiting.remove(guest)
        self.expected[guest] = end


def _turn(guest: Guest) -> tuple[int, int]:
    return PRIORITIES.index(guest.level), guest.number


test_a_room_never_differs_from_a_sorted_list = RoomBesideAList.TestCase
