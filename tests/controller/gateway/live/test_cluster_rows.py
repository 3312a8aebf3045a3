"""The cluster's health as rows: every field of the contract with the page."""

from typing import Any

import pytest

from controller.gateway.live.cluster_rows import machine_rows, model_rows, overview
from controller.gateway.live.rate_history import STEPS, RateHistory
from controller.gateway.live.table import TableEvents
from shared.messages.health import ClusterHealth
from shared.messages.worker_report import WorkerReport
from tests.controller.gateway.live.event_text import only
from tests.controller.values import report

_GB = 2**30
_HOSTILE = '<img src=x onerror="alert(1)">\n\nevent: log'
MODELS: list[dict[str, Any]] = [
    {
        "id": "qwen3-4b", "state": "warm", "priority": "high", "pinned": True,
        "size_bytes": 3 * _GB, "active_requests": 2, "queued_requests": 1, "idle_s": 130.7,
        "max_context_tokens": 32_768, "abilities": ["schema", "tools"], "batching": "together",
        "warnings": ["no chat template"],
    },
    {"id": "llama", "state": "loading", "phase": "downloading", "progress": 0.25},
    {"id": "broken", "state": "failed", "error": "no space left"},
    {"id": "spare", "state": "available"},
]  # fmt: skip
MAC: dict[str, Any] = {
    "models": MODELS,
    "active_requests": 3,
    "queued_requests": 6,
    "queue": {"levels": {"high": {"queued": 1}, "low": {"queued": 5}}},
    "engines": [
        {
            "index": 0, "state": "running", "restarts": 1, "step_ms": 12.345,
            "kv_bytes": _GB, "kv_memory": {"memory_bytes": _GB},
            "batches": [{"model": "qwen3-4b", "rows": 2}, {"model": "llama", "rows": 1}],
        },
        {"index": 1, "state": "restarting"},
    ],
    "memory_bytes": 5,
    "memory": {
        "own_bytes": 8 * _GB, "available_bytes": 20 * _GB, "soft_bytes": 24 * _GB,
        "hard_bytes": 28 * _GB, "pressure": "soft",
    },
    "cpu_cores": 3.14159,
    "hardware": {
        "chip": "Apple M3 Max", "accelerator": "metal", "cores": 16, "memory_bytes": 64 * _GB,
        "os": "macOS 15.1",
    },
    "labels": {"room": "attic"},
    "tokens_per_s": 81.26,
    "config_version": 4,
    "config_problem": "a setting is unknown",
    "uptime_s": 3725.9,
}  # fmt: skip


def health(*workers: WorkerReport, **fields: Any) -> ClusterHealth:
    leads: dict[str, Any] = {
        "id": "c-1", "boot_id": "b", "version": "1.2.3", "state": "ready", "leader": True,
        "active_requests": 7, "waiting_requests": 2, "uptime_s": 61.5, "migrations": 3,
        "breakers": {"mini": "half-open"},
    }  # fmt: skip
    stands_by = {
        "id": "c-2", "boot_id": "b", "version": "1.2.3", "state": "starting", "waiting_requests": 1,
        "leader_problem": "no JetStream", "breakers": {"mac": "open"},
    }  # fmt: skip
    values: dict[str, Any] = {
        "status": "degraded",
        "leader": {"id": "c-1", "term": 5},
        "skills": {"chat": ["qwen3-4b", "llama"], "code": ["qwen3-4b"]},
        "controllers": [leads, stands_by],
        "workers": list(workers),
    }
    return ClusterHealth.model_validate({**values, **fields})


def _history(**rates: float) -> RateHistory:
    history = RateHistory()
    history.record(rates)  # type: ignore[arg-type]
    return history


def test_a_machine_has_every_field_of_the_contract() -> None:
    row = machine_rows(health(report("mac", **MAC)), _history(mac=81.26))["mac"]
    assert row == {
        "id": "mac", "state": "ready", "chip": "Apple M3 Max", "accelerator": "metal",
        "os": "macOS 15.1", "cores": 16, "cpu_cores": 3.1, "version": "0.1.0", "uptime_s": 3720,
        "labels": {"room": "attic"},
        "memory": {
            "machine_bytes": 64 * _GB, "models_bytes": 3 * _GB, "kv_bytes": 2 * _GB,
            "other_bytes": 3 * _GB, "available_bytes": 20 * _GB, "soft_bytes": 24 * _GB,
            "hard_bytes": 28 * _GB, "pressure": "soft",
        },
        "active": 3, "queued": {"high": 1, "medium": 0, "low": 5}, "slots": 8, "rows": 3,
        "tokens_per_s": 81.3, "history": [None] * (STEPS - 1) + [81.3],
        "models": {"warm": 1, "loading": 1, "failed": 1, "available": 1}, "warm": ["qwen3-4b"],
        "engines": [
            {"index": 0, "state": "running", "restarts": 1, "step_ms": 12.3},
            {"index": 1, "state": "restarting", "restarts": 0, "step_ms": 0.0},
        ],
        "breaker": None, "config_version": 4, "config_problem": "a setting is unknown",
    }  # fmt: skip


def test_circuit_breakers_are_the_leaders() -> None:
    rows = machine_rows(health(report("mac"), report("mini")), RateHistory())
    assert (rows["mac"]["breaker"], rows["mini"]["breaker"]) == (None, "half-open")


def test_at_most_eight_warm_models_are_named_but_all_are_counted() -> None:
    many = [{"id": f"m{number}", "state": "warm"} for number in range(30)]
    row = machine_rows(health(report("mac", models=many)), RateHistory())["mac"]
    assert row["warm"] == [f"m{number}" for number in range(8)]
    assert row["models"]["warm"] == 30


@pytest.mark.parametrize(
    ("own", "weights", "kv", "shown"),
    [
        (8 * _GB, 3 * _GB, _GB, (3 * _GB, _GB, 4 * _GB)),
        (2 * _GB, 3 * _GB, _GB, (_GB, _GB, 0)),
        (_GB, 3 * _GB, 5 * _GB, (0, _GB, 0)),
        (0, 3 * _GB, _GB, (0, 0, 0)),
    ],
)
def test_the_parts_of_the_memory_are_never_more_than_what_is_used(
    own: int, weights: int, kv: int, shown: tuple[int, int, int]
) -> None:
    worker = report(
        "mac",
        memory={"own_bytes": own},
        models=[{"id": "m", "state": "warm", "size_bytes": weights}],
        engines=[{"index": 0, "state": "running", "kv_bytes": kv}],
    )
    memory = machine_rows(health(worker), RateHistory())["mac"]["memory"]
    assert (memory["models_bytes"], memory["kv_bytes"], memory["other_bytes"]) == shown


def test_small_changes_of_memory_and_time_change_no_row() -> None:
    def row(used: int, uptime_s: float) -> object:
        memory = {"own_bytes": used, "available_bytes": 2 * used}
        worker = report("mac", memory=memory, uptime_s=uptime_s)
        return machine_rows(health(worker), RateHistory())

    assert row(_GB, 120.0) == row(_GB + 2**20, 179.9) != row(_GB + 2**23, 179.9)
    assert row(_GB, 5.0) != row(_GB, 6.0), "seconds are shown within the first minute"


def test_a_model_has_every_field_of_the_contract() -> None:
    other = report("mini", models=[{"id": "qwen3-4b", "state": "available"}])
    rows = model_rows(health(other, report("mac", **MAC)))
    assert list(rows) == ["broken", "llama", "qwen3-4b", "spare"]
    assert rows["qwen3-4b"] == {
        "id": "qwen3-4b", "skills": ["chat", "code"], "abilities": ["tools", "schema"],
        "context_tokens": 32_768, "batching": "together", "batching_reason": None,
        "states": {"warm": 1, "loading": 0, "available": 1, "failed": 0},
        "active": 2, "queued": 1, "size_bytes": 3 * _GB, "warnings": ["no chat template"],
        "workers": [
            {
                "worker": "mac", "state": "warm", "phase": None, "progress": None, "error": None,
                "pinned": True, "priority": "high", "active": 2, "queued": 1, "idle_s": 120,
            },
            {
                "worker": "mini", "state": "available", "phase": None, "progress": None,
                "error": None, "pinned": False, "priority": "medium", "active": 0, "queued": 0,
                "idle_s": None,
            },
        ],
    }  # fmt: skip
    assert rows["llama"]["workers"][0]["phase"] == "downloading"
    assert rows["llama"]["workers"][0]["progress"] == 0.25
    assert rows["broken"]["workers"][0]["error"] == "no space left"
    assert (rows["spare"]["context_tokens"], rows["spare"]["batching"]) == (None, None)


def test_a_model_that_decodes_alone_anywhere_says_so_with_the_reason() -> None:
    alone = {"id": "m", "state": "warm", "batching": "alone", "batching_reason": "rows differ"}
    together = {"id": "m", "state": "warm", "batching": "together"}
    row = model_rows(health(report("a", models=[together]), report("b", models=[alone])))["m"]
    assert (row["batching"], row["batching_reason"]) == ("alone", "rows differ")


def test_at_most_fifty_workers_of_a_model_are_listed_and_failures_come_first() -> None:
    warm = [report(f"w{n:02}", models=[{"id": "m", "state": "warm"}]) for n in range(60)]
    failed = report("w99", models=[{"id": "m", "state": "failed", "error": "x"}])
    row = model_rows(health(*warm, failed))["m"]
    listed = [each["worker"] for each in row["workers"]]
    assert listed == ["w99", *(f"w{number:02}" for number in range(49))]
    assert row["states"] == {"warm": 60, "loading": 0, "available": 0, "failed": 1}


def test_the_overview_has_every_field_of_the_contract() -> None:
    state = health(report("mac", **MAC), report("mini", state="warming", tokens_per_s=1.0))
    assert overview(state, None, _history(mac=80.0, mini=2.0)) == {
        "status": "degraded", "problem": None, "leader": {"id": "c-1", "term": 5},
        "controllers": [
            {
                "id": "c-1", "state": "ready", "leader": True, "active": 7, "waiting": 2,
                "migrations": 3, "version": "1.2.3", "uptime_s": 60, "problem": None,
            },
            {
                "id": "c-2", "state": "starting", "leader": False, "active": 0, "waiting": 1,
                "migrations": 0, "version": "1.2.3", "uptime_s": 0, "problem": "no JetStream",
            },
        ],
        "skills": {"chat": ["qwen3-4b", "llama"], "code": ["qwen3-4b"]},
        "workers": 2, "ready": 1, "running": 3, "queued": 6, "waiting": 3, "tokens_per_s": 82.3,
        "memory_used_bytes": 8 * _GB, "memory_bytes": 64 * _GB,
        "history": {"step_s": 10, "tokens_per_s": [None] * (STEPS - 1) + [82.0]},
    }  # fmt: skip


def test_a_cluster_that_does_not_answer_is_unavailable_with_the_same_fields() -> None:
    before = health(report("mac", **MAC))
    lost = overview(before, "no controller answers", RateHistory())
    assert (lost["status"], lost["problem"]) == ("unavailable", "no controller answers")
    assert lost["workers"] == 1, "what was last known stays"
    never = overview(None, "no controller answers", RateHistory())
    assert never.keys() == lost.keys()
    assert (never["status"], never["leader"], never["workers"]) == ("unavailable", None, 0)


def test_hostile_names_pass_through_unchanged() -> None:
    worker = report(
        "mac",
        models=[{"id": _HOSTILE, "state": "failed", "error": _HOSTILE, "warnings": [_HOSTILE]}],
        hardware={"chip": _HOSTILE, "os": _HOSTILE},
        labels={_HOSTILE: _HOSTILE},
        version=_HOSTILE,
        config_problem=_HOSTILE,
    )
    machines, models = TableEvents("machines"), TableEvents("models")
    machines.update(machine_rows(health(worker), RateHistory()))
    models.update(model_rows(health(worker)))
    (machine,) = only(machines.since(0))["rows"]
    (model,) = only(models.since(0))["rows"]
    assert machine["chip"] == machine["os"] == machine["version"] == _HOSTILE
    assert machine["labels"] == {_HOSTILE: _HOSTILE} and machine["config_problem"] == _HOSTILE
    assert model["key"] == model["id"] == model["workers"][0]["error"] == _HOSTILE
    assert model["warnings"] == [_HOSTILE]


def test_the_largest_numbers_that_workers_may_report_can_be_sent() -> None:
    most, longest = 2**63 - 1, 1e308
    worker: dict[str, Any] = {
        "hardware": {"memory_bytes": most}, "memory": {"own_bytes": most}, "uptime_s": longest,
        "tokens_per_s": longest, "active_requests": most, "cpu_cores": longest,
        "engines": [{"index": 10**30, "state": "running", "kv_bytes": most}],
        "models": [{"id": "m", "state": "warm", "idle_s": longest, "max_context_tokens": 10**30}],
    }  # fmt: skip
    state = health(*(report(name, **worker) for name in "abc"))
    for rows in (machine_rows(state, RateHistory()), model_rows(state)):
        events = TableEvents("rows")
        events.update(rows)
        assert len(only(events.since(0))["rows"]) == len(rows)
    events = TableEvents("rows")
    events.update({"all": overview(state, None, RateHistory())})
    (row,) = only(events.since(0))["rows"]
    assert row["memory_bytes"] == 3 * most
