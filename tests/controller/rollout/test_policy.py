"""A roll-out from moment to moment: decisions on reports, no time passes."""

from typing import Any

import pytest

from controller.rollout.policy import (
    VolatileRolloutState,
    decide,
    expected_version,
    on_trial,
    record_order,
    start_rollout,
)
from controller.rollout.worker_metrics import PeriodMetrics
from shared.ids import WorkerId
from shared.messages.rollout import Phase, Rollout, RolloutState
from shared.messages.worker_report import WorkerReport
from shared.settings.controller import RolloutSettings as Settings
from tests.controller.rollout.reports import report

W1, W2, W3 = (WorkerId(name) for name in ("w1", "w2", "w3"))


class Play:
    """A leader and three workers, of which the first is the canary."""

    def __init__(self, **settings: Any) -> None:
        fields = {"baseline_s": 10, "bake_s": 20, "patience_s": 100, **settings}
        rollout = Rollout(
            version=2,
            before=1,
            phase="measuring",
            steps=[[W1], [W2, W3]],
            began_at=0.0,
            since=0.0,
            settings=Settings(**fields),
        )
        self.state = start_rollout(RolloutState(stable=1, last_version=1), rollout)
        self.reports = {worker: report(worker, 1) for worker in (W1, W2, W3)}
        self.progress = VolatileRolloutState()
        self.now = 0.0

    @property
    def rollout(self) -> Rollout:
        assert self.state.rollout is not None
        return self.state.rollout

    def phase(self) -> Phase:
        return self.rollout.phase

    def say(self, worker: WorkerId, version: int = 1, **fields: Any) -> None:
        self.reports[worker] = report(worker, version, **fields)

    def look(self, after_s: float = 0.25) -> list[tuple[WorkerId, int]]:
        """Time passes, and the leader looks; returns whom it tells what."""
        self.now += after_s
        if self.phase() in ("measuring", "baking"):
            self.progress.metrics = self.progress.metrics or PeriodMetrics(self.now)
            self.progress.metrics.add(self.reports.values(), self.now)
        decision = decide(self.state, self.reports, self.progress, self.now)
        self.state = decision.state
        for order in decision.orders:
            record_order(self.state, order, self.reports[order.worker], self.progress, self.now)
        return [(order.worker, order.version) for order in decision.orders]

    def until(self, phase: Phase) -> None:
        """All do at once as they are told, until then."""
        for _ in range(10_000):
            if self.phase() == phase:
                return
            for worker, version in self.look():
                self.say(worker, version, boot=f"b{version}")
        raise AssertionError(self.phase())


def test_one_after_another_each_step_watched() -> None:
    play = Play()
    assert play.look() == [] and play.look(9) == []
    assert play.phase() == "measuring"
    assert play.look(2) == [(W1, 2)]
    assert play.phase() == "applying"
    assert on_trial(play.state) == {W1}
    assert play.look() == []  # it is at it
    play.say(W1, 2, state="warming", boot="b2")
    assert play.look() == [] and play.phase() == "applying"
    play.say(W1, 2, boot="b2", loading=("m",))
    assert play.look() == [] and play.phase() == "applying"
    play.say(W1, 2, boot="b2")
    assert play.look() == [] and play.phase() == "baking"
    assert play.look(19) == [] and play.phase() == "baking"
    assert play.look(19) == [] and play.phase() == "baking"  # the time counts from its first look
    assert play.look(2) == [(W2, 2)] and play.phase() == "applying"
    assert on_trial(play.state) == {W2, W3}
    assert play.look() == []
    play.say(W2, 2, boot="b2")
    assert play.look() == [(W3, 2)]
    play.say(W3, 2, boot="b2")
    play.look()
    play.until("done")
    assert play.state.stable == 2 and on_trial(play.state) == frozenset()
    assert play.look() == []


def test_what_is_live_needs_no_restart() -> None:
    play = Play()
    play.look()
    play.look(11)
    play.say(W1, 2)
    play.look()
    assert play.phase() == "baking"


FAULTS = [
    ({"version": 1, "problem": "version 2: wrong"}, "w1 did not start: version 2"),
    ({"version": 2, "state": "unhealthy"}, "w1 has no running engine"),
    ({"version": 2, "failed_models": ("m",)}, "w1 cannot load m: no file"),
]


@pytest.mark.parametrize(("said", "reason"), FAULTS)
def test_a_worker_that_does_not_come_up_with_it(said: dict[str, Any], reason: str) -> None:
    play = Play()
    play.look()
    play.look(11)
    play.say(W1, boot="b2", **said)
    orders = play.look()
    assert play.phase() == "rolling_back" and (play.rollout.reason or "").startswith(reason)
    if said["version"] == 2:
        orders = orders or play.look()
        assert orders == [(W1, 1)]
        play.say(W1, 1, boot="b3")
    play.look()
    play.look()
    assert play.phase() == "rolled_back" and play.state.stable == 1


def test_a_model_that_was_not_there_before_either_is_no_reason() -> None:
    play = Play()
    play.say(W1, 1, failed_models=("m",))
    play.look()
    play.look(11)
    play.say(W1, 2, boot="b2", failed_models=("m",))
    play.look()
    assert play.phase() == "baking"


def test_one_that_refuses_or_takes_too_long() -> None:
    play = Play()
    play.look()
    play.look(11)
    play.progress.pending[W1].rejection = "worker.x: no"
    play.look()
    assert play.rollout.reason == "w1 rejected the version: worker.x: no"
    play = Play()
    play.look()
    play.look(11)
    play.say(W1, 1, state="draining")
    play.look(99)
    assert play.phase() == "applying"
    play.look(2)
    assert play.rollout.reason == "w1 is draining after 100 s"
    play = Play()
    play.look()
    play.look(11)
    del play.reports[W1]
    play.look(101)
    assert play.rollout.reason == "w1 is gone after 100 s"


def test_worse_while_it_is_watched() -> None:
    play = Play()
    play.until("baking")
    play.look()
    play.say(W1, 2, boot="b2", failed=9)
    orders = play.look()
    assert play.phase() == "rolling_back"
    assert play.rollout.reason == "100% of 9 requests failed or were refused at w1, 0% before"
    assert orders == [(W1, 1)]
    assert on_trial(play.state) == {W1}  # until it is back
    assert play.look() == []
    assert play.look(11) == [(W1, 1)]  # again, as it was not heard
    play.until("rolled_back")
    assert on_trial(play.state) == frozenset()


def test_back_in_the_second_step_half_of_them_at_once() -> None:
    play = Play()
    play.until("baking")
    while play.rollout.step == 0 or play.phase() != "baking":
        for worker, version in play.look():
            play.say(worker, version, boot="b2")
    play.look()
    play.say(W3, 2, boot="b2", failed=9)
    assert len(play.look()) == 1  # of three
    assert expected_version(play.state, W1) == 1
    play.until("rolled_back")
    assert {one.config_version for one in play.reports.values()} == {1}


def test_a_pause_stops_all_but_going_back() -> None:
    play = Play()
    play.until("baking")
    paused = play.rollout.model_copy(update={"paused": True})
    play.state = play.state.model_copy(update={"rollout": paused})
    play.look()
    assert play.look(100) == [] and play.phase() == "baking"
    play.say(W1, 2, boot="b2", failed=9)
    assert play.look() == [(W1, 1)] and play.phase() == "rolling_back"


def test_another_leader_goes_on_and_watches_anew() -> None:
    play = Play()
    play.until("baking")
    play.look(15)
    play.progress = VolatileRolloutState()  # nobody knows what was measured
    play.look(15)
    assert play.phase() == "baking"
    play.look(21)
    assert play.phase() == "applying"
    play.progress = VolatileRolloutState()  # nobody knows who was told
    assert play.look() == [(W2, 2)]


def going_back() -> Play:
    """The canary has failed, and was told."""
    play = Play()
    play.until("baking")
    play.look()
    play.say(W1, 2, boot="b2", failed=9)
    play.look()
    return play


def test_another_leader_that_goes_on_waits_until_all_that_have_it_have_reported() -> None:
    play = Play()
    play.until("baking")
    play.look()
    play.look(21)
    assert play.phase() == "applying"
    for worker in (W2, W3):
        play.say(worker, 2, boot="b2")
    heard, play.reports = play.reports, {W3: play.reports[W3]}
    play.progress = VolatileRolloutState(all_reported=False)
    play.look()
    assert play.phase() == "applying"
    play.reports = heard
    play.look()
    assert play.phase() == "baking"


def test_another_leader_that_goes_back_waits_until_all_that_have_it_have_reported() -> None:
    play = going_back()
    heard, play.reports = play.reports, {W3: play.reports[W3]}
    play.progress = VolatileRolloutState(all_reported=False)
    play.look()
    assert play.phase() == "rolling_back"
    play.reports = heard
    assert play.look() == [(W1, 1)]
    play.until("rolled_back")


def test_who_is_not_heard_by_another_leader_in_time_is_gone() -> None:
    play = going_back()
    del play.reports[W1]
    play.progress = VolatileRolloutState(all_reported=False)
    play.look()
    assert play.phase() == "rolling_back"
    play.progress.all_reported = True
    play.look()
    assert play.phase() == "rolled_back"


def test_who_comes_late_gets_what_is_right_for_it() -> None:
    play = Play()
    play.until("baking")
    late = WorkerId("w9")
    play.say(late, 0)
    assert play.look() == [(late, 1)]
    play.say(late, 1)
    while play.phase() != "done":
        for worker, version in play.look():
            assert worker != late or play.phase() == "done"
            play.say(worker, version, boot=f"b{version}")
    assert play.reports[late].config_version == 2


def test_who_left_during_its_step_holds_nobody_up() -> None:
    play = Play()
    del play.reports[W3]
    play.until("done")
    play.say(W3, 1)
    assert play.look() == [(W3, 2)]


def test_who_cannot_run_what_all_run_is_left_alone() -> None:
    play = Play()
    play.until("done")
    play.say(WorkerId("old"), 0, problem="version 2: unknown key")
    assert play.look(20) == []


def test_a_worker_that_ends_comes_back_with_its_version_or_is_told_again() -> None:
    play = Play()
    play.until("done")
    play.say(W2, 0, boot="b3")  # its disk was lost
    assert play.look() == [(W2, 2)]


@pytest.mark.parametrize("stable", [0, 5])
def test_where_nothing_is_rolled_out_all_get_what_is_stable(stable: int) -> None:
    state = RolloutState(stable=stable, last_version=5)
    reports: dict[WorkerId, WorkerReport] = {W1: report(W1, 0), W2: report(W2, 5)}
    decision = decide(state, reports, VolatileRolloutState(), 0.0)
    wrong = W1 if stable else W2
    assert [(one.worker, one.version) for one in decision.orders] == [(wrong, stable)]
