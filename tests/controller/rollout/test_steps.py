"""Which workers get a version together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.rollout.policy import plan_steps
from shared.errors import InvalidRequest
from shared.ids import WorkerId
from shared.settings.controller import RolloutSettings


def workers(count: int) -> list[WorkerId]:
    return [WorkerId(f"w{number:02d}") for number in range(count)]


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(0, []), (1, [1]), (2, [1, 1]), (3, [1, 1, 1]), (4, [1, 1, 2]), (8, [1, 1, 2, 4]),
     (20, [1, 4, 5, 10])],
)  # fmt: skip
def test_one_canary_then_a_quarter_a_half_and_all(count: int, sizes: list[int]) -> None:
    assert [len(step) for step in plan_steps(workers(count), RolloutSettings())] == sizes


def test_named_canaries_come_first() -> None:
    names = workers(4)
    steps = plan_steps(names, RolloutSettings(), [names[3], names[1], names[3]])
    assert steps == [[names[3], names[1]], [names[0], names[2]]]


def test_no_canary_and_all_at_once() -> None:
    assert plan_steps(workers(3), RolloutSettings(canary=0, steps_percent=[100])) == [workers(3)]


def test_a_canary_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="there is no worker 'x'"):
        plan_steps(workers(2), RolloutSettings(), [WorkerId("x")])


@given(
    st.integers(0, 60),
    st.integers(0, 70),
    st.lists(st.integers(1, 99), unique=True, max_size=6).map(lambda some: [*sorted(some), 100]),
)
def test_each_worker_is_in_one_step_and_none_is_empty(
    count: int, canary: int, percents: list[int]
) -> None:
    settings = RolloutSettings(canary=canary, steps_percent=percents)
    steps = plan_steps(workers(count), settings)
    assert sorted(worker for step in steps for worker in step) == workers(count)
    assert all(steps)
