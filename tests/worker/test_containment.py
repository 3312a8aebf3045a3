"""Models and requests that end engines, in a real cluster: each harms itself, and nobody else."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest
import yaml

from shared.client import Cluster, connect
from shared.errors import StreamFailed
from shared.ids import ModelId, WorkerId
from shared.messages.control import LoadModel
from shared.messages.model_status import ModelStatus
from shared.messages.worker_report import WorkerReport
from tests.access.roles import as_client
from tests.crashing.folders import make_crashing_model
from tests.models import make_tiny_model
from tests.processes import ClusterProcess, cluster_process, wait_until
from tests.shared.cli.simulated_cluster import run
from tests.tiers import long_form

pytestmark = pytest.mark.anyio

_GOOD = ("good-1", "good-2", "good-3")
_TRIGGER = 5
_TOUCHY = "touchy"
"""It ends the engine when a pass has the trigger among its inputs."""
_BAD: dict[str, tuple[str | int, str]] = {
    "aborts-at-load": ("load", "abort"),
    "raises-at-first-token": ("first token", "exception"),
    "exits-at-load": ("load", "sys.exit"),
    "crashes-at-first-token": ("first token", "segmentation fault"),
    "leaves-at-first-token": ("first token", "_exit"),
    "hangs-at-load": ("load", "hang"),
    "hangs-at-first-token": ("first token", "hang"),
}
_LAST_WORDS = {
    "aborts-at-load": "signal 6: Fatal Python error: Aborted",
    "raises-at-first-token": "ValueError: axis 3 is out of bounds",
    "exits-at-load": "SystemExit (1), after ModuleNotFoundError: No module named",
    "crashes-at-first-token": "signal 11: Fatal Python error: Segmentation fault",
    "leaves-at-first-token": "exit status 0",
    "hangs-at-load": "one step has taken",
    "hangs-at-first-token": "one step has taken",
}
_TOKENS = 300
_FAILS_WITHIN_S = 120  # on a machine that is shared
_ONE_WORKER = WorkerId("worker-1")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The entries of all models in the settings."""
    folder = tmp_path_factory.mktemp("models")
    good = {
        name: {"path": str(make_tiny_model(folder / name, seed=seed, endless=True))}
        for seed, name in enumerate(_GOOD)
    }
    like = folder / _GOOD[0]
    bad = {
        name: make_crashing_model(folder / name, like, at=at, by=by)
        for name, (at, by) in _BAD.items()
    }
    touchy = make_crashing_model(folder / _TOUCHY, like, at=_TRIGGER, by="abort")
    return {**good, **bad, _TOUCHY: touchy}


@pytest.fixture(scope="module")
def process(
    folders: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcess]:
    """A cluster of one worker that knows them all, and has loaded what is good."""
    config = tmp_path_factory.mktemp("cluster") / "cluster.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "skills": {"chat": list(folders)},
                "models": folders,
                "controller": {
                    "circuit_breaker": {"failure_threshold": 1000},
                    "failover": {"missed_heartbeats": 30},  # machines are shared
                },
                "worker": {
                    "engines": {"restart_delay_ms": 10, "step_timeout_ms": 4000},
                    "pre_warming": {"models": [{"model": name} for name in (*_GOOD, _TOUCHY)]},
                },
            }
        )
    )
    with cluster_process(arguments=("--config", str(config))) as running:
        yield running


@pytest.fixture
async def cluster(process: ClusterProcess) -> AsyncIterator[Cluster]:
    async with connect(as_client(process.url)) as client:
        await wait_until(lambda: _is_warm(client, *_GOOD, _TOUCHY))
        yield client


async def _report(cluster: Cluster) -> WorkerReport:
    (report,) = (await cluster.health()).workers
    return report


async def _restarts(cluster: Cluster) -> int:
    """Of the engine, as far as its worker has told."""
    return (await _report(cluster)).engines[0].restarts


async def _until_restarted(cluster: Cluster, times: int) -> None:
    """Return once the engine runs again after so many restarts, and holds all that is good."""

    async def has_restarted() -> bool:
        (engine,) = (await _report(cluster)).engines
        runs = (engine.restarts, engine.state) == (times, "running")
        return runs and await _is_warm(cluster, *_GOOD, _TOUCHY)

    await wait_until(has_restarted)


async def _status(cluster: Cluster, model: str) -> ModelStatus:
    models = (await _report(cluster)).models
    return next(status for status in models if status.id == model)


async def _is_warm(cluster: Cluster, *models: str) -> bool:
    workers = (await cluster.health()).workers
    states = {status.id: status.state for worker in workers for status in worker.models}
    return all(states.get(ModelId(model)) == "warm" for model in models)


class _Reader:
    """Asks one model for the same answer again and again.

    Attributes:
        answers: their tokens.
        reads: set while an answer comes.
        migrations: how often one went on after its engine had ended.
        longest_pause_s: between two tokens of one answer.
    """

    def __init__(self, cluster: Cluster, model: str) -> None:
        self._cluster = cluster
        self._model = model
        self.answers: list[list[int]] = []
        self.reads = asyncio.Event()
        self.migrations = 0
        self.longest_pause_s = 0.0

    async def read(self) -> None:
        """One answer."""
        tokens: list[int] = []
        attempts: set[int] = set()
        bias = {str(_TRIGGER): -100.0}
        asked = self._cluster.stream(
            "Hello", model=self._model, max_tokens=_TOKENS, temperature=0, logit_bias=bias
        )
        heard_at: float | None = None
        async with asked as stream:
            async for output in stream:
                now = time.monotonic()
                if heard_at is not None:
                    self.longest_pause_s = max(self.longest_pause_s, now - heard_at)
                heard_at = now
                self.reads.set()
                tokens += output.token_ids
                attempts.add(stream._assembler.attempt)
        self.reads.clear()
        self.answers.append(tokens)
        self.migrations += len(attempts) - 1

    async def go_on(self) -> None:
        while True:
            await self.read()


@asynccontextmanager
async def _reading(cluster: Cluster, *models: str) -> AsyncIterator[list[_Reader]]:
    """Readers of good models meanwhile: all their answers are alike, and whole."""
    readers = [_Reader(cluster, model) for model in models]
    for reader in readers:
        await reader.read()
    async with asyncio.TaskGroup() as tasks:
        reading = [tasks.create_task(reader.go_on()) for reader in readers]
        for reader in readers:
            await reader.reads.wait()
        yield readers
        counts = [len(reader.answers) for reader in readers]

        async def all_have_gone_on() -> bool:
            return all(len(r.answers) >= n + 2 for r, n in zip(readers, counts, strict=True))

        await wait_until(all_have_gone_on)
        for task in reading:
            task.cancel()
    for reader in readers:
        assert len(reader.answers[0]) == _TOKENS
        assert all(answer == reader.answers[0] for answer in reader.answers)


@pytest.mark.parametrize(
    "bad",
    [name if number < 3 else long_form(name) for number, name in enumerate(_BAD)],
)
async def test_a_bad_model_fails_by_name_and_no_stream_of_another_is_lost(
    cluster: Cluster, process: ClusterProcess, bad: str
) -> None:
    restarts = await _restarts(cluster)
    async with _reading(cluster, *_GOOD) as readers:
        loaded = await run("models", "load", bad, "--nats", process.url, limit_s=_FAILS_WITHIN_S)
    assert loaded.status != 0
    assert bad in loaded.err and _LAST_WORDS[bad] in loaded.err.replace("\n", " ")
    ends = 0 if bad == "exits-at-load" else 2
    await _until_restarted(cluster, restarts + ends)
    assert (sum(reader.migrations for reader in readers) > 0) is (ends > 0)
    status = await _status(cluster, bad)
    assert status.state == "failed" and _LAST_WORDS[bad] in (status.error or "")
    asked = await run("run", "--model", bad, "Hello", "--nats", process.url)
    assert asked.status != 0
    assert bad in asked.err and _LAST_WORDS[bad] in asked.err.replace("\n", " ")


async def test_who_waits_for_a_bad_model_hears_its_name_and_why_it_failed(
    cluster: Cluster,
) -> None:
    """An operator's order has it tried again, twice."""
    restarts = await _restarts(cluster)
    bad = "aborts-at-load"
    reply = await cluster.control(_ONE_WORKER, LoadModel(model=ModelId(bad)))
    assert reply.ok
    with pytest.raises(StreamFailed) as failed:
        await cluster.generate("Hello", model=bad, max_tokens=5)
    assert failed.value.code == "model_unavailable"
    assert bad in failed.value.message and _LAST_WORDS[bad] in failed.value.message
    await _until_restarted(cluster, restarts + 2)


@pytest.mark.parametrize("when", ["in its prompt", "in a step"])
async def test_a_request_that_ends_two_engines_ends_itself_and_its_model_serves_on(
    cluster: Cluster, when: str
) -> None:
    hostile: dict[str, Any] = {"prompt": [30, _TRIGGER, 40]}
    if when == "in a step":
        hostile = {"prompt": [30, 40], "logit_bias": {str(_TRIGGER): 100.0}}
    restarts = await _restarts(cluster)
    async with _reading(cluster, *_GOOD[:1], _TOUCHY) as readers:
        with pytest.raises(StreamFailed) as failed:
            await cluster.generate(model=_TOUCHY, max_tokens=5, temperature=0, **hostile)
        assert failed.value.code == "request_crashes_engine"
    await _until_restarted(cluster, restarts + 2)
    assert await _is_warm(cluster, _TOUCHY)
    assert any(reader.migrations for reader in readers)


async def test_a_client_whose_requests_end_engines_is_refused_and_others_are_served_on(
    cluster: Cluster, process: ClusterProcess
) -> None:
    """Each of its requests is another one. An operator's order ends what was before, and this."""
    assert (await cluster.control(_ONE_WORKER, LoadModel(model=ModelId(_TOUCHY)))).ok
    restarts = await _restarts(cluster)
    hostile: dict[str, Any] = {"prompt": [30, _TRIGGER, 40], "max_tokens": 5, "model": _TOUCHY}
    async with connect(as_client(process.url), client="eve") as eve:
        async with _reading(cluster, _TOUCHY):
            codes = []
            for number in range(4):
                with pytest.raises(StreamFailed) as failed:
                    await eve.generate(temperature=0, seed=number, **hostile)
                codes.append(failed.value.code)
        assert codes == ["request_crashes_engine"] * 2 + ["engine_crashed", "model_unavailable"]
        assert "eve" in failed.value.message
        await _until_restarted(cluster, restarts + 5)
        assert (await cluster.control(_ONE_WORKER, LoadModel(model=ModelId(_TOUCHY)))).ok
        harmless: dict[str, Any] = {"prompt": [30, 40], "logit_bias": {str(_TRIGGER): -100.0}}
        await eve.generate(model=_TOUCHY, max_tokens=5, temperature=0, **harmless)


async def test_a_client_that_asks_all_the_time_beside_one_that_ends_engines_is_not_refused_for_it(
    cluster: Cluster, process: ClusterProcess
) -> None:
    assert (await cluster.control(_ONE_WORKER, LoadModel(model=ModelId(_TOUCHY)))).ok
    harmless: dict[str, Any] = {"prompt": [30, 40], "logit_bias": {str(_TRIGGER): -100.0}}
    asked: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "model": _TOUCHY}
    codes: list[str] = []

    async def ask_until_the_other_is_refused(bystander: Cluster) -> None:
        while codes[-1:] != ["model_unavailable"]:
            await bystander.generate(**asked, **harmless)

    async with (
        connect(as_client(process.url), client="eve") as eve,
        connect(as_client(process.url), client="bystander") as bystander,
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(8):
            tasks.create_task(ask_until_the_other_is_refused(bystander))
        while codes[-1:] != ["model_unavailable"]:
            assert len(codes) < 30
            with pytest.raises(StreamFailed) as failed:
                prompt = [30, _TRIGGER, 40 + len(codes)]
                await eve.generate(prompt=prompt, timeout_ms=500, **asked)
            codes.append(failed.value.code)
    assert (await cluster.control(_ONE_WORKER, LoadModel(model=ModelId(_TOUCHY)))).ok


async def test_engines_that_are_killed_from_outside_cost_no_model_its_name(
    cluster: Cluster, process: ClusterProcess
) -> None:
    for _ in range(2):
        restarts = await _restarts(cluster)
        async with _reading(cluster, *_GOOD):
            _engine(process).kill()
            await _until_restarted(cluster, restarts + 1)


def _engine(cluster: ClusterProcess) -> psutil.Process:
    (engine,) = (each for each in cluster.processes() if "worker.engine" in each.cmdline())
    return engine
