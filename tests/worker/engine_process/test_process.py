"""The engine process as its owner sees it: alive, killed, orphaned."""

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tests.processes import wait_until_gone
from tests.worker.engine_owner import TINY, EngineOwner, owned_engine
from worker.engine_process.process import EngineState
from worker.link.activity import EngineActivity
from worker.link.facts import EngineMeasured, EngineStarted, ModelLoaded
from worker.link.orders import CancelSequence, LoadModel

pytestmark = pytest.mark.anyio

_HICCUP_S = 1.2
_LONGER_THAN_A_HANG_S = 2.6


@pytest.fixture(scope="module")
async def impatient(tiny_model: Path) -> AsyncIterator[EngineOwner]:
    """An engine with its model, whose owner bears 2 s of silence."""
    async with owned_engine(hang_timeout_ms=2000) as owner:
        await _load(owner, tiny_model)
        yield owner


def _kill(owner: EngineOwner) -> psutil.Process:
    assert owner.process.pid is not None
    process = psutil.Process(owner.process.pid)
    process.send_signal(signal.SIGKILL)
    return process


async def _load(owner: EngineOwner, folder: Path) -> ModelLoaded:
    """Load a model on the engine's present life."""
    await owner.wait(lambda: owner.process.state == "running")
    seen = len(owner.of_kind(ModelLoaded))
    owner.process.send(LoadModel(TINY, str(folder)))
    return await owner.wait_fact(ModelLoaded, seen + 1)


def _state(owner: EngineOwner) -> EngineState:
    return owner.process.state


async def test_an_engine_starts_loads_generates_and_ends_when_asked(tiny_model: Path) -> None:
    async with owned_engine() as owner:
        started = await owner.wait_fact(EngineStarted)
        assert owner.facts[0] == started
        assert (started.threads, owner.process.state) == (2, "running")
        assert started.blas != "reference"
        assert set(started.versions) == {"mlx", "mlx-lm"}

        await _load(owner, tiny_model)
        seen = len(owner.of_kind(EngineMeasured))
        measured = await owner.wait_fact(EngineMeasured, seen + 1)
        (batch,) = measured.batches
        assert batch.prefill_tokens_per_s > 0, "known before the first request"
        assert len(await owner.generate(1)) == 8

        assert owner.process.pid is not None
        process = psutil.Process(owner.process.pid)
        await owner.process.stop()
        assert not process.is_running()
        assert owner.losses == []


async def test_a_killed_engine_is_reported_with_its_signal_and_started_again(
    tiny_model: Path,
) -> None:
    async with owned_engine(restart_delay_ms=10) as owner:
        await _load(owner, tiny_model)
        before = await owner.generate(1)
        killed = _kill(owner)
        await owner.wait(lambda: len(owner.losses) == 1)
        assert "signal 9" in owner.losses[0]
        assert _state(owner) == "restarting"

        await owner.wait_fact(EngineStarted, 2)
        assert owner.process.pid != killed.pid
        assert (_state(owner), owner.process.restarts) == ("running", 1)
        await _load(owner, tiny_model)
        assert await owner.generate(2) == before


async def test_orders_to_an_engine_that_dies_or_was_stopped_are_lost_without_a_word() -> None:
    async with owned_engine(restart_delay_ms=10) as owner:
        await owner.wait_fact(EngineStarted)
        _kill(owner)
        while not owner.losses:
            owner.process.send(CancelSequence(1))
            await asyncio.sleep(0)
        await owner.wait_fact(EngineStarted, 2)
        stopping = asyncio.create_task(owner.process.stop())
        while _state(owner) != "stopped":
            owner.process.send(CancelSequence(1))
            await asyncio.sleep(0)
        owner.process.send(CancelSequence(1))
        await stopping


async def test_an_engine_that_crashes_in_native_code_says_so() -> None:
    async with owned_engine() as owner:
        await owner.wait_fact(EngineStarted)
        assert owner.process.pid is not None
        psutil.Process(owner.process.pid).send_signal(signal.SIGFPE)
        await owner.wait(lambda: len(owner.losses) == 1)
        floating_point = "Floating-point" if sys.version_info >= (3, 13) else "Floating point"
        assert owner.losses == [f"signal 8: Fatal Python error: {floating_point} exception"]


async def test_past_its_restart_limit_an_engine_has_failed_until_the_next_attempt() -> None:
    async with owned_engine(
        max_restarts=0, restart_delay_ms=10, retry_after_failure_s=0.05
    ) as owner:
        await owner.wait_fact(EngineStarted)
        _kill(owner)
        await owner.wait(lambda: len(owner.losses) == 1)
        assert _state(owner) == "failed"
        await owner.wait_fact(EngineStarted, 2)
        assert _state(owner) == "running"


async def test_an_engine_that_does_not_start_in_time_is_killed_and_reported() -> None:
    async with owned_engine(startup_timeout_ms=1, max_restarts=0) as owner:
        await owner.wait(lambda: len(owner.losses) == 1)
        assert owner.losses[0] == "it did not start within 0.001 s"
        assert owner.of_kind(EngineStarted) == []


async def test_a_stopped_engine_is_killed_and_reported_and_comes_back(tiny_model: Path) -> None:
    async with owned_engine(hang_timeout_ms=2000, restart_delay_ms=10) as owner:
        await owner.wait_fact(EngineStarted)
        assert owner.process.pid is not None
        stopped = psutil.Process(owner.process.pid)
        stopped.suspend()
        await owner.wait(lambda: len(owner.losses) == 1)
        assert owner.losses == ["no message for 2 s"]
        assert not stopped.is_running()
        await _load(owner, tiny_model)
        assert len(await owner.generate(1)) == 8


async def test_an_engine_that_is_stopped_again_and_again_for_less_than_that_goes_on(
    impatient: EngineOwner,
) -> None:
    assert impatient.process.pid is not None
    engine = psutil.Process(impatient.process.pid)
    for number in (1, 2):
        engine.suspend()
        await asyncio.sleep(_HICCUP_S)
        engine.resume()
        assert len(await impatient.generate(number)) == 8
    assert (impatient.losses, impatient.process.pid) == ([], engine.pid)


async def test_while_its_owner_does_not_read_an_engine_is_not_taken_for_silent(
    impatient: EngineOwner,
) -> None:
    impatient.reading.clear()
    seen = len(impatient.facts)
    await impatient.wait(lambda: len(impatient.facts) > seen)  # the last that is read
    await asyncio.sleep(_LONGER_THAN_A_HANG_S)
    impatient.reading.set()
    assert len(await impatient.generate(3)) == 8
    assert impatient.losses == []


async def test_an_engine_that_is_too_long_in_one_step_is_killed_and_reported(
    demo_folder: Path,
) -> None:
    async with owned_engine(chunk_tokens=8192, max_stall_ms=10**6) as owner:
        loaded = await _load(owner, demo_folder)
        owner.limit_steps(3000)
        owner.submit(1, [1] * (loaded.max_context_tokens - 1), 1)
        await owner.wait(lambda: len(owner.losses) == 1)
        assert owner.losses[0].startswith("one step has taken")
        assert owner.outputs(1) == [], "it ended by itself: the prefill was too short"


_STUCK = (
    "{% set n = messages | length + 8 %}"
    "{% if messages[0].content == 'stuck' %}{{ n ** (n ** n) }}{% endif %}{{ messages[0].content }}"
)
"""One call of native code that takes hours, and lets no other thread run."""


async def test_a_prompt_whose_preparation_stops_all_threads_is_blamed_and_not_the_step(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "stuck"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(_STUCK)
    async with owned_engine(hang_timeout_ms=4000, restart_delay_ms=10) as owner:
        await _load(owner, folder)
        owner.submit(1, [1, 2, 3], 900)
        owner.chat(2, "hello")
        await owner.wait(lambda: bool(owner.outputs(2)))
        owner.chat(3, "stuck")
        await owner.wait(lambda: bool(owner.losses))
        (end,) = owner.ends
        assert (end.cause, end.work) == ("hang", EngineActivity("prompt", TINY, (3,)))
        await owner.wait(lambda: len(owner.of_kind(EngineStarted)) == 2)


async def test_an_engine_that_does_not_stop_in_time_is_killed(demo_folder: Path) -> None:
    async with owned_engine(
        chunk_tokens=8192, max_stall_ms=10**6, shutdown_timeout_ms=100
    ) as owner:
        loaded = await _load(owner, demo_folder)
        owner.submit(1, [1] * (loaded.max_context_tokens - 1), 1)  # seconds without a look at us
        assert owner.process.pid is not None
        process = psutil.Process(owner.process.pid)
        await owner.process.stop()
        assert not process.is_running()
        assert owner.outputs(1) == [], "it ended by itself: the prefill was too short"


async def test_an_engine_ignores_the_signals_that_a_terminal_sends_to_all(
    tiny_model: Path,
) -> None:
    async with owned_engine() as owner:
        await owner.wait_fact(EngineStarted)
        assert owner.process.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            psutil.Process(owner.process.pid).send_signal(number)
        await _load(owner, tiny_model)
        assert owner.losses == []


@pytest.mark.parametrize("moment", ["loading", "prefill"])
def test_an_engine_leaves_when_its_owner_is_killed_even_in_a_long_prefill(
    demo_folder: Path, moment: str
) -> None:
    command = [sys.executable, "-m", "tests.worker.engine_owner", str(demo_folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        engine = psutil.Process(int(owner.stdout.readline()))
        if moment == "prefill":
            assert owner.stdout.readline() == "prefill\n"
        assert engine.is_running()
        owner.kill()
    # The prefill alone would take more than a minute.
    assert wait_until_gone([engine], limit_s=20) == []


async def test_stopping_an_engine_that_never_started_is_no_error() -> None:
    owner = EngineOwner(chunk_tokens=512, retry_after_failure_s=1)
    async with asyncio.timeout(30):
        await owner.process.stop()
    assert owner.process.pid is None
