"""Deadlines by key: values in, values out."""

import math

from hypothesis import given
from hypothesis import strategies as st

from controller.requests.deadlines import DeadlineHeap

_KEYS = st.integers(0, 5)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), _KEYS, st.integers(0, 20)),
        st.tuples(st.just("drop"), _KEYS, st.just(0)),
        st.tuples(st.just("pop"), st.just(0), st.integers(0, 20)),
    ),
    max_size=300,
)


def test_a_later_time_of_a_key_does_not_count_until_it_was_due() -> None:
    deadlines: DeadlineHeap[str] = DeadlineHeap()
    for at in (5, 9, 3, 7):
        deadlines.set("one", at)
    assert deadlines.next_at == 3
    assert (deadlines.pop_due(2), deadlines.pop_due(4), deadlines.pop_due(9)) == ([], ["one"], [])
    deadlines.set("one", 7)
    assert deadlines.next_at == 7


def test_what_was_dropped_may_be_due_later_than_before() -> None:
    deadlines: DeadlineHeap[str] = DeadlineHeap()
    deadlines.set("one", 3)
    deadlines.drop("one")
    deadlines.set("one", 8)
    assert (deadlines.pop_due(7), deadlines.pop_due(8)) == ([], ["one"])


@given(_STEPS)
def test_what_is_due_is_the_earliest_that_was_set(steps: list[tuple[str, int, int]]) -> None:
    deadlines: DeadlineHeap[int] = DeadlineHeap()
    expected: dict[int, int] = {}
    for verb, key, at in steps:
        match verb:
            case "set":
                deadlines.set(key, at)
                expected[key] = min(at, expected.get(key, at))
            case "drop":
                deadlines.drop(key)
                expected.pop(key, None)
            case _:
                due = deadlines.pop_due(at)
                assert sorted(due) == sorted(k for k, when in expected.items() if when <= at)
                assert [expected[k] for k in due] == sorted(expected[k] for k in due)
                expected = {k: when for k, when in expected.items() if when > at}
        assert deadlines.next_at == min(expected.values(), default=math.inf)


def test_a_deadline_that_is_put_off_a_thousand_times_takes_no_room() -> None:
    deadlines: DeadlineHeap[str] = DeadlineHeap()
    for at in range(10_000):
        deadlines.set("one", at)
    assert len(deadlines._heap) == 1
