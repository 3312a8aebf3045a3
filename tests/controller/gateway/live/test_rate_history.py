"""Rates of the last ten minutes, in steps."""

from controller.gateway.live.rate_history import STEP_S, STEPS, RateHistory
from shared.ids import WorkerId

MAC, MINI = WorkerId("mac"), WorkerId("mini")
_START = 1_000_000.0


def _recorded(*samples: tuple[float, dict[WorkerId, float]]) -> RateHistory:
    """Samples at seconds from a start."""
    history = RateHistory()
    for at_s, rates in samples:
        history.record(rates, _START + at_s)
    return history


def test_before_the_first_sample_no_step_has_a_rate() -> None:
    assert RateHistory().total == RateHistory().worker(MAC) == [None] * STEPS


def test_a_step_is_the_mean_of_its_samples_and_the_last_one_is_now() -> None:
    history = _recorded((0, {MAC: 10, MINI: 1}), (4, {MAC: 20, MINI: 2}), (9.9, {MAC: 30, MINI: 3}))
    assert history.worker(MAC) == [None] * (STEPS - 1) + [20.0]
    assert history.worker(MINI)[-1] == 2.0
    assert history.total[-1] == 22.0


def test_steps_that_ended_stay_and_those_without_a_sample_are_gaps() -> None:
    history = _recorded((0, {MAC: 10}), (STEP_S, {MAC: 20}), (4 * STEP_S, {MAC: 50}))
    assert history.worker(MAC)[-6:] == [None, 10.0, 20.0, None, None, 50.0]
    assert history.total[-6:] == [None, 10.0, 20.0, None, None, 50.0]
    assert len(history.total) == len(history.worker(MAC)) == STEPS


def test_after_a_long_silence_nothing_of_before_is_left() -> None:
    history = _recorded((0, {MAC: 10}), (1e9, {MAC: 20}))
    assert history.worker(MAC) == history.total == [None] * (STEPS - 1) + [20.0]


def test_what_is_older_than_all_steps_is_forgotten() -> None:
    samples = [(float(STEP_S * step), {MAC: float(step)}) for step in range(STEPS + 2)]
    assert _recorded(*samples).worker(MAC) == [float(step) for step in range(2, STEPS + 2)]


def test_a_worker_that_left_is_forgotten_and_starts_anew_but_the_total_keeps_its_part() -> None:
    history = _recorded((0, {MAC: 10, MINI: 5}), (STEP_S, {MAC: 10}), (2 * STEP_S, {MAC: 10}))
    assert history.worker(MINI) == [None] * STEPS
    assert history.total[-3:] == [15.0, 10.0, 10.0]
    history.record({MAC: 10, MINI: 7}, _START + 2 * STEP_S + 1)
    assert history.worker(MINI) == [None] * (STEPS - 1) + [7.0]


def test_a_cluster_without_workers_generates_nothing_which_is_no_gap() -> None:
    assert _recorded((0, {}), (STEP_S, {})).total[-3:] == [None, 0.0, 0.0]
