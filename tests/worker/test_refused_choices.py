"""A request of many choices that is refused leaves no work behind."""

import time

import pytest

from tests.worker.running_agent import RunningAgent

pytestmark = pytest.mark.anyio

_CHOICES = 16


async def test_what_is_left_of_a_refused_request_holds_up_nobody(agent: RunningAgent) -> None:
    too_long = "x" * 100_000
    begun = time.monotonic()
    failed = await (await agent.start(prompt=too_long)).failed()
    alone_s = time.monotonic() - begun
    assert failed.error.code == "context_length_exceeded"

    await (await agent.start(prompt=too_long, n=_CHOICES)).failed()
    begun = time.monotonic()
    await (await agent.start()).done()
    assert time.monotonic() - begun < _CHOICES / 3 * alone_s
