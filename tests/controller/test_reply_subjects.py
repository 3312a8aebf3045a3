"""A controller answers in inboxes only: nobody can have it publish on subjects of the cluster."""

import json

import pytest

from shared.bus import Bus, Message
from tests.controller.running import CONTROLLER, Running

pytestmark = pytest.mark.anyio

ORDER = "mlx.worker.w9.control.drain"
ASKED = json.dumps({"prompt": "x", "request_id": "r"}).encode()
QUERY = b'{"request_id": "r"}'


@pytest.mark.parametrize(
    ("subject", "payload"),
    [
        ("mlx.infer.local.chat", ASKED),
        ("mlx.infer.local.chat", b"{"),
        ("mlx.request.local.status", QUERY),
        ("mlx.request.local.status", b"{"),
        ("mlx.request.local.cancel", QUERY),
        ("mlx.route.local.chat", ASKED),
        ("mlx.route.local.chat", b"{"),
        ("mlx.health.cluster", b""),
        ("mlx.health.controller", b""),
        (f"mlx.health.controller.{CONTROLLER}", b""),
    ],
)
async def test_no_answer_is_an_order(
    cluster: Running, bus: Bus, subject: str, payload: bytes
) -> None:
    await cluster.worker("w1")
    inbox = await cluster.ask(request_id="r")
    await inbox.next()
    orders: list[Message] = []

    async def take(message: Message) -> None:
        orders.append(message)

    await bus.subscribe(ORDER, take)
    await bus.flush()
    await bus.publish(subject, payload, reply=ORDER)
    await cluster.settle()
    await cluster.settle()
    assert orders == []
