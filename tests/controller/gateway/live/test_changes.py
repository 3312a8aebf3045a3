"""What the log says of two states of the cluster, before and after."""

from typing import Any

import pytest

from controller.gateway.live.changes import (
    Change,
    health_changes,
    request_changes,
    rollout_changes,
)
from shared.ids import WorkerId
from shared.messages.health import ClusterHealth
from shared.messages.request_list import RequestSummary
from shared.messages.rollout import RolloutState
from shared.messages.worker_report import WorkerReport
from tests.controller.gateway.live.test_cluster_rows import health
from tests.controller.values import models, report

MAC = WorkerId("mac")


def _said(before: ClusterHealth | None, after: ClusterHealth) -> list[Change]:
    return list(health_changes(before, after))


def _of_worker(before: WorkerReport, after: WorkerReport) -> list[Change]:
    return _said(health(before), health(after))


def test_at_first_it_says_who_is_there() -> None:
    worker = report(MAC, hardware={"chip": "Apple M3"}, models=models(a="warm", b="available"))
    assert _said(None, health(worker)) == [
        Change("info", "controller", "c-1 leads, in term 5"),
        Change("info", "worker", "mac joined: Apple M3", MAC),
        Change("info", "model", "a is warm on mac", MAC),
    ]


def test_nothing_is_said_of_what_did_not_change() -> None:
    assert _said(health(report(MAC)), health(report(MAC, active_requests=9, uptime_s=5.0))) == []


def test_a_new_leader_is_a_warning_also_if_only_its_term_is_new() -> None:
    for leader in ({"id": "c-2", "term": 6}, {"id": "c-1", "term": 6}):
        text = f"{leader['id']} leads, in term 6"
        after = health(leader=leader)
        assert _said(health(), after) == [Change("warning", "controller", text)]
    assert _said(health(), health(leader=None)) == []


def test_controllers_come_and_go() -> None:
    two = health()
    one = health(controllers=two.controllers[:1])
    assert _said(one, two) == [Change("info", "controller", "controller c-2 joined")]
    assert _said(two, one) == [Change("warning", "controller", "controller c-2 is gone")]


def test_workers_join() -> None:
    assert _said(health(), health(report(MAC, models=[]))) == [
        Change("info", "worker", "mac joined: no chip", MAC)
    ]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("ready", Change("error", "worker", "mac is gone: it sends no heartbeats", MAC)),
        ("unhealthy", Change("error", "worker", "mac is gone: it sends no heartbeats", MAC)),
        ("draining", Change("info", "worker", "mac left", MAC)),
        ("stopped", Change("info", "worker", "mac left", MAC)),
    ],
)
def test_a_worker_that_leaves_is_an_error_only_if_nobody_told_it_to(
    state: Any, expected: Change
) -> None:
    assert _said(health(report(MAC, state=state)), health()) == [expected]


def test_workers_that_left_at_once_are_told_in_the_order_of_their_names() -> None:
    names = [f"w{number}" for number in range(8)]
    said = _said(health(*map(report, reversed(names))), health())
    assert [change.worker for change in said] == names


@pytest.mark.parametrize(
    ("state", "level"), [("warming", "info"), ("draining", "info"), ("unhealthy", "error")]
)
def test_a_worker_changes_its_state(state: Any, level: Any) -> None:
    assert _of_worker(report(MAC), report(MAC, state=state)) == [
        Change(level, "worker", f"mac is {state}", MAC)
    ]


def test_a_worker_that_was_started_again_is_told_once() -> None:
    assert _of_worker(report(MAC), report(MAC, boot="b2", state="starting")) == [
        Change("warning", "worker", "mac was started again", MAC)
    ]


def test_an_engine_that_was_restarted_is_an_error() -> None:
    def engines(*restarts: int) -> list[dict[str, Any]]:
        return [
            {"index": index, "state": "running", "restarts": count}
            for index, count in enumerate(restarts)
        ]

    assert _of_worker(report(MAC, engines=engines(1, 0)), report(MAC, engines=engines(1, 2))) == [
        Change("error", "worker", "mac: engine 1 was restarted", MAC)
    ]
    assert _said(health(), health(report(MAC, models=[], engines=engines(3)))) == [
        Change("info", "worker", "mac joined: no chip", MAC)
    ], "what was before nobody saw"
    assert _of_worker(
        report(MAC, engines=engines(3)), report(MAC, boot="b2", engines=engines(0))
    ) == [Change("warning", "worker", "mac was started again", MAC)]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("available", "loading", [Change("info", "model", "mac loads demo", MAC)]),
        ("loading", "warm", [Change("info", "model", "demo is warm on mac", MAC)]),
        (
            "loading", "failed",
            [Change("error", "model", "demo failed on mac: no space", MAC)],
        ),
        ("warm", "available", [Change("info", "model", "mac unloaded demo", MAC)]),
        (None, "available", []),
        (None, "warm", [Change("info", "model", "demo is warm on mac", MAC)]),
        ("warm", None, []),
        ("warm", "warm", []),
    ],
)  # fmt: skip
def test_a_model_changes_its_state(before: Any, after: Any, expected: list[Change]) -> None:
    def having(state: Any) -> WorkerReport:
        return report(MAC, models=models(demo=state) if state else [])

    assert _of_worker(having(before), having(after)) == expected


def test_a_model_that_failed_without_a_reason_says_so() -> None:
    failed = report(MAC, models=[{"id": "demo", "state": "failed"}])
    (change,) = _of_worker(report(MAC), failed)
    assert change.text == "demo failed on mac: no reason known"


def _request(**fields: Any) -> dict[str, RequestSummary]:
    values: dict[str, Any] = {
        "client": "ada", "request_id": "r", "skill": "chat", "model": "demo", "state": "running",
        "worker": "mini", "tokens": 40,
    }  # fmt: skip
    return {"ada/r": RequestSummary.model_validate({**values, **fields})}


def test_a_request_that_moved_says_from_where_to_where_and_after_how_many_tokens() -> None:
    before = _request(worker="mac")
    assert list(request_changes(before, _request(migrations=1))) == [
        Change("warning", "request", "r of ada moved from mac to mini after 40 tokens",
               WorkerId("mini"))
    ]  # fmt: skip
    waits = _request(migrations=1, worker=None, state="backing_off")
    assert list(request_changes(before, waits)) == [
        Change("warning", "request", "r of ada moved from mac to another worker after 40 tokens")
    ]


def test_requests_that_come_end_or_stay_are_not_told() -> None:
    one = _request(migrations=1)
    for before, after in (({}, one), (one, {}), (one, _request(migrations=1, tokens=50))):
        assert list(request_changes(before, after)) == []


def _rollout(version: int = 3, **fields: Any) -> RolloutState:
    values = {
        "version": version, "before": 2, "phase": "measuring", "began_at": 1.0, "since": 1.0,
        "settings": {},
    }  # fmt: skip
    return RolloutState.model_validate({"rollout": {**values, **fields}})


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (_rollout(), _rollout(phase="applying"), ("info", "version 3 is applying")),
        (_rollout(phase="baking"), _rollout(phase="baking", step=1),
         ("info", "version 3 is baking")),
        (_rollout(), _rollout(phase="rolling_back", reason="errors rose"),
         ("error", "version 3 is rolling_back: errors rose")),
        (_rollout(), _rollout(paused=True), ("info", "version 3 was paused")),
        (_rollout(paused=True), _rollout(), ("info", "version 3 was resumed")),
        (_rollout(), _rollout(4), ("info", "version 4 is measuring")),
        (RolloutState(), _rollout(), ("info", "version 3 is measuring")),
    ],
)  # fmt: skip
def test_a_roll_out_changes(
    before: RolloutState, after: RolloutState, expected: tuple[str, str]
) -> None:
    (change,) = rollout_changes(before, after)
    assert (change.level, change.text, change.kind) == (*expected, "rollout")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, _rollout()), (RolloutState(), RolloutState()), (_rollout(), RolloutState()),
        (_rollout(), _rollout()),
    ],
)  # fmt: skip
def test_of_a_roll_out_that_did_not_change_nothing_is_told(
    before: RolloutState | None, after: RolloutState
) -> None:
    assert list(rollout_changes(before, after)) == []
