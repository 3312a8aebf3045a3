"""Tasks that nobody waits for."""

import asyncio
import logging

import pytest

from shared.tasks import Tasks

pytestmark = pytest.mark.anyio


async def test_what_is_started_runs_beside_and_one_that_fails_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks, done = Tasks(), list[str]()

    async def work(name: str) -> None:
        await asyncio.sleep(0)
        if name == "bad":
            raise ValueError("broken")
        done.append(name)

    for name in ("one", "bad", "other"):
        tasks.start(work(name))
    assert done == []
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            await asyncio.sleep(0)
    assert done == ["one", "other"]
    (record,) = caplog.records
    assert record.exc_info is not None and str(record.exc_info[1]) == "broken"


async def test_at_the_end_what_still_runs_is_cancelled_and_has_time_to_clean_up() -> None:
    tasks, cleaned = Tasks(), list[int]()

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(number)

    for number in range(3):
        tasks.start(work(number))
    await asyncio.sleep(0)
    await tasks.end()
    assert sorted(cleaned) == [0, 1, 2]
    await tasks.end()
