"""Versions of cluster.yaml rolled out under load: real processes and a real model."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import orjson
import psutil
import pytest

from shared.client import Cluster, connect
from shared.errors import Unavailable
from shared.messages.rollout import (
    ApplyRollout,
    RollBack,
    Rollout,
    RolloutOrder,
    RolloutState,
    ShowRollout,
)
from shared.messages.worker_report import WorkerReport
from shared.settings.controller import RolloutSettings as Settings
from tests.faults.asks import ENDLESS, Ask
from tests.faults.load import Load, answers_alone, assert_exact
from tests.faults.records import DONE, Answer, Record
from tests.processes import SCRIPTS, ClusterProcess, cluster_process, wait_for
from tests.tiers import long_form

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

USERS = 6
THINK_S = 0.3
TOKENS = 60
LIMIT_S = 120
SMALL_CONTEXT = 16
"""Tokens; less than any of the prompts takes."""
WATCHED = Settings(baseline_s=2, bake_s=4)
BRIEFLY_WATCHED = Settings(baseline_s=2, bake_s=2)


def asks(priority: str) -> list[Ask]:
    return [
        Ask(
            f"{priority} {number}",
            {
                "prompt": f"{number}. salt and stone",
                "max_tokens": TOKENS,
                "seed": number,
                "temperature": 0.8 * (number % 2),
                "logit_bias": ENDLESS,
                "priority": priority,
            },
        )
        for number in range(USERS)
    ]


@pytest.fixture(scope="module")
def config(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("config") / "cluster.yaml"
    file.write_text(text(tiny_model))
    return file


def text(model: Path, context_tokens: int = 200, rows: int = 16) -> str:
    """Of cluster.yaml."""
    source = {"path": str(model), "max_context_tokens": context_tokens}
    settings = {
        "skills": {"chat": ["tiny"]},
        "models": {"tiny": source},
        "worker": {
            "drain_timeout_ms": 5000,
            "continuous_batching": {"max_batch_size": rows},
        },
        "controller": {
            "lease": {"ttl_s": 2},
            "failover": {"heartbeat_interval_ms": 500},
        },
    }
    return orjson.dumps(settings).decode()


@pytest.fixture
def process(config: Path, tmp_path: Path) -> Iterator[ClusterProcess]:
    """Three workers, in a home of their own."""
    settings = {"XDG_DATA_HOME": str(tmp_path / "data"), "HOME": str(tmp_path)}
    arguments = ("--config", str(config))
    with cluster_process(workers=3, arguments=arguments, settings=settings) as process:
        yield process


class Traffic:
    """Users who ask again and again.

    Attributes:
        records: of all that has ended.
        ends: nobody asks again.
    """

    def __init__(self, asks: list[Ask]) -> None:
        self.asks = asks
        self.records: list[Record] = []
        self.ends = False

    async def run(self, cluster: Cluster) -> None:
        while not self.ends:
            self.records += await Load(self.asks).run(cluster)
            await asyncio.sleep(THINK_S)

    def failed(self) -> list[str]:
        return [f"{one.name}: {one.end}" for one in self.records if one.end != DONE]


@contextlib.asynccontextmanager
async def traffic(cluster: Cluster, *priorities: str) -> AsyncIterator[list[Traffic]]:
    """Beside the block; its last answers are waited for."""
    kinds = [Traffic(asks(priority)) for priority in priorities]
    tasks = [asyncio.create_task(kind.run(cluster)) for kind in kinds]
    try:
        yield kinds
        for kind in kinds:
            kind.ends = True
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def order(cluster: Cluster, what: RolloutOrder) -> RolloutState:
    """To whoever leads, as soon as somebody does."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(Unavailable):
                reply = await cluster.rollout(what)
                assert reply.state is not None
                return reply.state
            await asyncio.sleep(0.1)


async def until(cluster: Cluster, *phases: str, step: int = 0) -> Rollout:
    async with asyncio.timeout(LIMIT_S):
        while True:
            rollout = (await order(cluster, ShowRollout())).rollout
            if rollout is not None and rollout.phase in phases and rollout.step >= step:
                return rollout
            await asyncio.sleep(0.02)


async def apply(cluster: Cluster, text: str, settings: Settings = WATCHED) -> None:
    await order(cluster, ApplyRollout(text=text, settings=settings))


async def truths(cluster: Cluster) -> list[Answer]:
    return await answers_alone(cluster, asks("medium"))


async def worker_2(cluster: Cluster) -> WorkerReport | None:
    workers = (await cluster.health()).workers
    return next((worker for worker in workers if worker.id == "worker-2"), None)


async def versions(cluster: Cluster) -> list[int]:
    return [worker.config_version for worker in (await cluster.health()).workers]


async def test_a_good_version_reaches_all_workers_and_stays_and_nobody_notices(
    process: ClusterProcess, tiny_model: Path
) -> None:
    async with connect(process.url) as cluster:
        alone = await truths(cluster)
        async with traffic(cluster, "high", "medium") as users:
            await apply(cluster, text(tiny_model, rows=4))
            rollout = await until(cluster, "done", "rolled_back")
        assert (rollout.phase, rollout.reason) == ("done", None)
        assert await versions(cluster) == [1, 1, 1]
        for kind in users:
            assert kind.failed() == []
            for number, record in enumerate(kind.records):
                assert_exact(record, alone[number % USERS])
        before = await worker_2(cluster)
        assert before is not None
        _kill(process.member("worker-2"))
        async with asyncio.timeout(LIMIT_S):
            while (worker := await worker_2(cluster) or before).boot_id == before.boot_id:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert worker.config_version == 1 and worker.max_batch_size == 4


async def test_a_version_that_raises_errors_goes_back_by_itself(
    process: ClusterProcess, tiny_model: Path
) -> None:
    async with connect(process.url) as cluster:
        await truths(cluster)
        async with traffic(cluster, "high", "medium") as users:
            await apply(cluster, text(tiny_model, context_tokens=SMALL_CONTEXT))
            rollout = await until(cluster, "done", "rolled_back")
        assert rollout.phase == "rolled_back"
        assert rollout.reason is not None and "failed or were refused at worker-1" in rollout.reason
        assert await versions(cluster) == [0, 0, 0]
        high, medium = users
        assert high.failed() == [] and len(high.records) > USERS
        assert medium.failed() != []  # or it raised none


EVERY_OTHER_PHASE = (("measuring", 0), ("baking", 0), ("applying", 1))


@pytest.mark.parametrize(
    "phases",
    [
        EVERY_OTHER_PHASE,
        *(long_form((phase,)) for phase in EVERY_OTHER_PHASE),
        *(long_form((phase,)) for phase in (("applying", 0), ("baking", 1))),
    ],
    ids=lambda phases: ", ".join(f"{phase} {step}" for phase, step in phases),
)
async def test_it_goes_on_after_its_controller_was_killed(
    phases: Sequence[tuple[str, int]], process: ClusterProcess, tiny_model: Path
) -> None:
    """In each of these phases of one rollout, and while the next one is taken back."""
    async with connect(process.url) as cluster:
        await truths(cluster)
        await apply(cluster, text(tiny_model, rows=4), BRIEFLY_WATCHED)
        for phase, step in phases:
            await until(cluster, phase, step=step)
            _kill(process.member("controller-1"))
        rollout = await until(cluster, "done", "rolled_back")
        assert (rollout.phase, rollout.reason) == ("done", None)
        assert await versions(cluster) == [1, 1, 1]
        await apply(cluster, text(tiny_model, rows=8), BRIEFLY_WATCHED)
        await until(cluster, "baking", step=1)
        await order(cluster, RollBack())
        await until(cluster, "rolling_back")
        _kill(process.member("controller-1"))
        await until(cluster, "rolled_back", step=0)
        assert await versions(cluster) == [1, 1, 1]


def _kill(process: psutil.Process) -> None:
    os.kill(process.pid, signal.SIGKILL)


def test_the_commands(process: ClusterProcess, tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    at_once = ("--baseline", "0", "--bake", "0")

    def rollout(*arguments: str, fails: bool = False) -> str:
        command = [str(SCRIPTS / "cluster"), "rollout", *arguments, "--nats", process.url]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=tmp_path
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    wait_for(lambda: "leads" in _status(process), "a controller leads", limit_s=LIMIT_S)
    file.write_text("worker:\n  drain: 5\n")
    for verb in ("plan", "apply"):
        said = rollout(verb, str(file), fails=True)
        assert said.startswith("error: ") and "line 2: worker.drain: unknown key" in said
    assert "no such file" in rollout("apply", "nowhere.yaml", fails=True)
    assert "must rise" in rollout(
        "apply", *_written(file, tiny_model), "--steps", "9,1", fails=True
    )

    plan = json.loads(rollout("plan", *_written(file, tiny_model, rows=4), "--json"))
    assert {name: told["effect"] for name, told in plan["workers"].items()} == dict.fromkeys(
        ("worker-1", "worker-2", "worker-3"), "restart"
    )
    key = "worker.continuous_batching.max_batch_size"
    assert {"key": key, "before": 16, "after": 4} in plan["workers"]["worker-1"]["changes"]
    assert f"{key}: 16 → 4" in rollout("plan", str(file))

    assert "Version 1  done" in rollout("apply", str(file), *at_once, "--note", "smaller")
    assert json.loads(rollout("status", "--json"))["stable"] == 1
    assert rollout("show", "1") == file.read_text() + "\n"
    assert "Nothing changes" in rollout("plan", str(file))
    gone = _written(file, tiny_model / "gone")
    said = rollout("apply", *gone, *at_once, "--canary", "worker-2", fails=True)
    assert "the version was rolled back: worker-2 cannot load tiny" in said
    assert "All workers run each machine's own file" in rollout("rollback")
    rollouts = json.loads(rollout("history", "--json"))["rollouts"]
    assert [(one["version"], one["phase"]) for one in rollouts] == [
        (0, "done"), (2, "rolled_back"), (1, "done")
    ]  # fmt: skip
    assert "smaller" in rollout("history")
    assert "nothing is being rolled out" in rollout("pause", fails=True)


def _written(file: Path, model: Path, rows: int = 16) -> list[str]:
    file.write_text(text(model, rows=rows))
    return [str(file)]


def _status(process: ClusterProcess) -> str:
    command = [str(SCRIPTS / "cluster"), "status", "--nats", process.url]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
