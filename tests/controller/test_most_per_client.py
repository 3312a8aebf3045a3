"""No client may have more than so many requests that have not ended, where clients are known."""

from collections.abc import AsyncIterator

import pytest

from shared.bus import Bus
from shared.settings.nats import NatsSettings
from tests.controller.inbox import Inbox, failed
from tests.controller.running import Running, running_controller

pytestmark = pytest.mark.anyio


@pytest.fixture
async def strict(nats_settings: NatsSettings, bus: Bus) -> AsyncIterator[Running]:
    """A controller that takes two of each client."""
    async with running_controller(nats_settings, bus, strict=True, most_per_client=2) as running:
        yield running


async def ask(cluster: Running, client: str, **body: object) -> Inbox:
    return await cluster.ask(subject=f"mlx.infer.{client}.chat", **body)


async def test_the_next_one_is_rejected_until_one_has_ended(strict: Running) -> None:
    worker = await strict.worker("w1")
    first, second = await ask(strict, "ada", request_id="a"), await ask(strict, "ada")
    await first.accepted()
    await second.accepted()
    third = failed(await (await ask(strict, "ada")).next())
    assert third.error.code == "rate_limit_exceeded" and third.error.retryable
    assert third.error.retry_after_ms
    dispatch = await worker.next_dispatch()
    await worker.finish(dispatch)
    await strict.settle()
    await (await ask(strict, "ada")).accepted()


async def test_others_are_not_concerned(strict: Running) -> None:
    await strict.worker("w1")
    for client in ("ada", "bob", "ada", "bob"):
        await (await ask(strict, client)).accepted()
    for client in ("ada", "bob"):
        assert failed(await (await ask(strict, client)).next()).error.code == "rate_limit_exceeded"


async def test_the_same_one_again_is_none_more(strict: Running) -> None:
    worker = await strict.worker("w1")
    for name in ("a", "b"):
        await (await ask(strict, "ada", request_id=name)).accepted()
    again = await ask(strict, "ada", request_id="a")
    assert (await worker.next_attached()).inbox == again.subject
    assert again.rest() == []


async def test_where_clients_are_not_known_nobody_is_counted(
    nats_settings: NatsSettings, bus: Bus
) -> None:
    async with running_controller(nats_settings, bus, strict=False, most_per_client=1) as cluster:
        await cluster.worker("w1")
        for _ in range(3):
            await (await cluster.ask()).accepted()
