"""Deadlines by key: values in, values out."""

import math

from hypothesis import given
from hypothesis import strategies as st

from controller.requests.deadlines import Deadlines

_KEYS = st.integers(0, 5)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), _KEYS, st.integers(0, 20)),
        st.tuples(st.just("drop"), _KEYS, st.just(0)),
        st.tuples(st.just("pop"), st.just(0), st.integers(0, 20)),
    ),
    max_size=300,
)


@given(_STEPS)
def test_what_is_due_is_what_was_set_last(steps: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    expected: dict[int, int] = {}
    for verb, key, at in steps:
        match verb:
            case "set":
                deadlines.set(key, at)
                expected[key] = at
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
    deadlines: Deadlines[str] = Deadlines()
    for at in range(10_000):
        deadlines.set("one", at)
    assert len(deadlines._heap) < 100
