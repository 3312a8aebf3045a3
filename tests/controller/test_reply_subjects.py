"""A controller answers in inboxes only, and under the strict rule in those of who asks: nobody can
have it publish on subjects of the cluster, or write to others."""

import json

import pytest

from shared.bus import Bus, IncomingMessage
from shared.settings.nats import NatsSettings
from shared.version import PROTOCOL
from tests.controller.running import CONTROLLER, Running, running_controller

pytestmark = pytest.mark.anyio

ORDER = "mlx.worker.w9.control.drain"
ASKED = json.dumps({"prompt": "x", "request_id": "r"}).encode()
ASKED_ANEW = json.dumps({"prompt": "x"}).encode()
QUERY = b'{"request_id": "r"}'
TRANSFER = json.dumps(
    {"protocol": PROTOCOL, "controller": "c-9", "term": 1, "requests": []}
).encode()


@pytest.mark.parametrize(
    ("subject", "payload"),
    [
        ("mlx.infer.local.chat", ASKED),
        ("mlx.infer.local.chat", ASKED_ANEW),
        ("mlx.infer.local.chat", b"{"),
        ("mlx.request.local.status", QUERY),
        ("mlx.request.local.status", b"{"),
        ("mlx.request.local.cancel", QUERY),
        ("mlx.route.local.chat", ASKED),
        ("mlx.route.local.chat", b"{"),
        ("mlx.health.cluster", b""),
        ("mlx.health.controller", b""),
        (f"mlx.health.controller.{CONTROLLER}", b""),
        (f"mlx.controller.{CONTROLLER}.transfer", TRANSFER),
    ],
)
async def test_no_answer_is_an_order(
    cluster: Running, bus: Bus, subject: str, payload: bytes
) -> None:
    await cluster.worker("w1")
    inbox = await cluster.ask(request_id="r")
    await inbox.next()
    orders: list[IncomingMessage] = []

    async def take(message: IncomingMessage) -> None:
        orders.append(message)

    await bus.subscribe(ORDER, take)
    await bus.flush()
    await bus.publish(subject, payload, reply=ORDER)
    await cluster.settle()
    await cluster.settle()
    assert orders == []


@pytest.mark.parametrize(
    ("subject", "payload"),
    [
        ("mlx.infer.ada.chat", ASKED_ANEW),
        ("mlx.infer.ada.chat", b"{"),
        ("mlx.request.ada.status", QUERY),
        ("mlx.request.ada.status", b"{"),
        ("mlx.request.ada.cancel", b"{"),
        ("mlx.route.ada.chat", ASKED),
        ("mlx.route.ada.chat", b"{"),
    ],
)
async def test_under_the_strict_rule_nobody_is_answered_in_the_inbox_of_another(
    nats_settings: NatsSettings, bus: Bus, subject: str, payload: bytes
) -> None:
    heard: list[str] = []

    async def take(message: IncomingMessage) -> None:
        heard.append(message.subject)

    async with running_controller(nats_settings, bus, strict=True) as cluster:
        await cluster.worker("w1")
        for inbox in ("_INBOX.ada.running", "_INBOX.ada.asks", "_INBOX.bob.asks", "_INBOX.asks"):
            await bus.subscribe(inbox, take)
        await bus.flush()
        await bus.publish("mlx.infer.ada.chat", ASKED, reply="_INBOX.ada.running")
        await cluster.settle()
        heard.clear()
        for inbox in ("_INBOX.bob.asks", "_INBOX.asks", "_INBOX.ada.asks"):
            await bus.publish(subject, payload, reply=inbox)
        await cluster.until(lambda: "_INBOX.ada.asks" in heard)
        await cluster.settle()
        assert set(heard) <= {"_INBOX.ada.asks", "_INBOX.ada.running"}


async def test_under_the_strict_rule_no_stream_is_attached_to_the_inbox_of_another(
    nats_settings: NatsSettings, bus: Bus
) -> None:
    async with running_controller(nats_settings, bus, strict=True) as cluster:
        worker = await cluster.worker("w1")
        await cluster.begin(request_id="r")
        for inbox in ("_INBOX.bob.asks", "_INBOX.asks", ORDER, "_INBOX.local.asks"):
            await bus.publish("mlx.infer.local.chat", ASKED, reply=inbox)
        assert (await worker.next_attached()).inbox == "_INBOX.local.asks"
        await cluster.settle()
        assert worker.attached_inboxes == []
