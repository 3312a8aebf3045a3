"""A controller whose process stood still hears what came meanwhile before it says anything."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from shared.bus import Bus
from shared.messages.stream import DoneMessage
from shared.settings.nats import NatsSettings
from tests.access.roles import as_tester
from tests.controller.running import Running
from tests.controller.simulated_worker import SimulatedWorker, keep_silent

pytestmark = pytest.mark.anyio
STALL_S = 0.6
"""Longer than a client waits for the first word, shorter than a connection counts as lost."""


async def test_nothing_is_said_after_the_end_that_came_during_a_stall(
    cluster: Running, nats_settings: NatsSettings
) -> None:
    worker = await cluster.worker("w1")
    worker.answer = keep_silent
    inbox = await cluster.ask()
    dispatch = await worker.next_dispatch()

    async def answer_all() -> None:
        await worker.acknowledge_late(dispatch)
        await worker.finish(dispatch)

    _while_all_else_stands_still(worker, nats_settings, answer_all)
    await cluster.settle()
    accepted, end = inbox.rest()
    assert getattr(accepted, "status", None) == "accepted"
    assert isinstance(end, DoneMessage)


async def test_after_a_stall_one_message_to_itself_is_enough(
    cluster: Running, nats_settings: NatsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await cluster.worker("w1")
    worker.answer = keep_silent
    await cluster.ask()
    dispatch = await worker.next_dispatch()
    link, checked = cluster.controller._link, 0
    check = link.check

    async def counted() -> bool:
        nonlocal checked
        checked += 1
        return await check()

    monkeypatch.setattr(link, "check", counted)

    async def say_much() -> None:
        for _ in range(100):
            await worker.say("heartbeat")

    _while_all_else_stands_still(worker, nats_settings, say_much)
    await cluster.settle()
    assert checked <= 3  # the timer's, and those that are due anyway
    await worker.acknowledge_late(dispatch)


def _while_all_else_stands_still(
    worker: SimulatedWorker, nats_settings: NatsSettings, act: Callable[[], Awaitable[None]]
) -> None:
    """Let the worker act from a thread, with a connection of its own, while the event loop of
    this process is blocked, the controller's with it."""

    async def act_there() -> None:
        bus = await Bus.connect(as_tester(nats_settings.servers[0]), name="test")
        before, worker._bus = worker._bus, bus
        await act()
        await bus.flush()
        worker._bus = before
        await bus.close()

    begun = time.monotonic()
    thread = threading.Thread(target=lambda: asyncio.run(act_there()))
    thread.start()
    thread.join()
    time.sleep(max(0.0, begun + STALL_S - time.monotonic()))
