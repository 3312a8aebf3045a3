"""Events that are JSON of the right form, with values that no process of ours would send."""

import json
from typing import Any

import pytest

from shared.codec import decode
from shared.messages.health import ClusterHealth, LeaderInfo
from tests.controller.running import CONTROLLER, Running
from tests.controller.simulated_worker import WAIT_S

pytestmark = pytest.mark.anyio

_WORKER = {"id": "w9", "boot_id": "b9", "version": "0.1.0", "state": "ready"}
_CONTROLLER = {"id": "c-9", "boot_id": "b9", "version": "0.1.0", "state": "ready"}
_NOT_A_NUMBER = float("nan")


@pytest.mark.parametrize(
    ("who", "fields"),
    [
        ("worker", {"uptime_s": _NOT_A_NUMBER}),
        ("worker", {"tokens_per_s": float("inf")}),
        ("worker", {"models": [{"id": "demo", "state": "loading", "progress": _NOT_A_NUMBER}]}),
        ("controller", {"uptime_s": _NOT_A_NUMBER}),
        ("worker", {"memory_bytes": 10**400}),
        ("worker", {"id": ""}),
        ("worker", {"id": "two words"}),
        ("worker", {"id": "a.b"}),
        ("worker", {"id": "*"}),
        ("worker", {"id": "x\r\nPUB mlx.infer.local.chat 2\r\n{}"}),
        ("worker", {"boot_id": "two words"}),
        ("controller", {"id": ">"}),
        ("worker", {"term": -1}),
        ("worker", {"term": _NOT_A_NUMBER}),
        ("controller", {"term": 10**400}),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_an_event_with_impossible_values_is_not_believed(
    cluster: Running, who: str, fields: dict[str, Any]
) -> None:
    term = cluster.machine.term
    of_kind = _WORKER if who == "worker" else _CONTROLLER
    event = json.dumps({"type": "heartbeat", who: {**of_kind, **fields}}).encode()
    await cluster.bus.publish(f"mlx.event.{who}.stranger", event)
    await cluster.settle()
    answer = await cluster.bus.request("mlx.health.cluster", b"", timeout_s=WAIT_S)
    health = decode(ClusterHealth, answer.payload)
    assert health.workers == []
    assert [controller.id for controller in health.controllers] == ["c-1"]
    assert health.leader == LeaderInfo(id=CONTROLLER, term=term)
