"""What the server does not permit is said to who waits for it, at once, and to nobody else."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shared.bus import Bus, IncomingMessage
from shared.client import connect
from shared.errors import BusPermissionDenied, BusTimeout
from shared.settings.nats import NatsSettings
from tests.processes import NatsProcess

pytestmark = pytest.mark.anyio

_FOR_EVER_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsSettings]:
    """One where only `allowed.>` and the inboxes of `ada` are permitted."""
    nats = NatsProcess(tmp_path, secured=False)
    subjects = ["allowed.>", "_INBOX.ada.>"]
    user = {"user": "u", "password": "p", "permissions": {"publish": subjects}}
    nats.more = {"authorization": {"users": [user]}}
    nats.start()
    yield NatsSettings(servers=[nats.url.replace("://", "://u:p@")])
    nats.kill()


@pytest.fixture
async def bus(server: NatsSettings) -> AsyncIterator[Bus]:
    bus = await Bus.connect(server, name="test", inbox_prefix="_INBOX.ada", wait_s=30)
    yield bus
    await bus.close()


async def test_a_question_that_is_not_permitted_fails_at_once(bus: Bus) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(BusPermissionDenied, match=r"mlx\.Worker\.w\.drain") as caught:
            await bus.request("mlx.Worker.w.drain", b"", timeout_s=_FOR_EVER_S)
        assert caught.value.code == "not_permitted" and not caught.value.retryable
        with pytest.raises(BusPermissionDenied):
            await bus.request_many("mlx.logs.recent", b"", wait_s=_FOR_EVER_S)


async def test_others_that_wait_meanwhile_are_not_disturbed(bus: Bus) -> None:
    asked = asyncio.Event()

    async def answer(message: IncomingMessage) -> None:
        asked.set()
        await refused.wait()
        await bus.publish(message.reply, b"yes")

    refused = asyncio.Event()
    await bus.subscribe("allowed.question", answer)
    await bus.flush()
    waiting = asyncio.create_task(bus.request("allowed.question", b"", timeout_s=_FOR_EVER_S))
    await asked.wait()
    with pytest.raises(BusPermissionDenied):
        await bus.request("other", b"", timeout_s=_FOR_EVER_S)
    refused.set()
    assert (await waiting).payload == b"yes"


async def test_a_missing_answer_is_still_only_missing(bus: Bus) -> None:
    async def keep_quiet(_: IncomingMessage) -> None:
        pass

    await bus.subscribe("allowed.question", keep_quiet)
    with pytest.raises(BusTimeout):
        await bus.request("allowed.question", b"", timeout_s=0.05)


async def test_a_client_that_is_known_by_another_name_is_told_when_it_connects(
    server: NatsSettings,
) -> None:
    async with connect(server, client="ada"):
        pass
    async with asyncio.timeout(30):
        with pytest.raises(BusPermissionDenied, match=r"_INBOX\.bob\."):
            async with connect(server, client="bob"):
                pass


async def test_a_refusal_is_logged(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BusPermissionDenied):
        await bus.request("other", b"", timeout_s=_FOR_EVER_S)
    (warning,) = [each for each in caplog.messages if "does not permit this: other" in each]
    assert "after an upgrade: `cluster auth renew`" in warning
