"""The `worker` command as people start it."""

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from shared import subjects
from shared.bus import Bus
from shared.codec import decode
from shared.ids import WorkerId
from shared.messages.health import WorkerHealth
from tests.access.roles import environment
from tests.processes import RunningNats
from tests.worker.running_agent import Wire

_LIMIT_S = 60


def _worker(
    scripts: Path, *arguments: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [scripts / "worker", *arguments],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        env={**os.environ, **environment},
    )


def test_check_shows_what_mlx_runs_on_as_json(scripts: Path) -> None:
    ran = _worker(scripts, "--check", "--json", CLUSTER__WORKER__ENGINES__THREADS="1")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert set(found) == {
        *("device", "accelerator", "blas", "threads", "mlx", "mlx_lm", "python"),
        *("memory_bytes", "available_memory_bytes", "memory_limit_bytes"),
        *("float32_gflops", "slow", "engines", "engines_why"),
    }
    assert found["accelerator"] in ("cpu", "metal", "cuda")
    assert (found["threads"], found["slow"]) == (1, False)
    assert found["engines"] >= 1 and found["engines_why"]
    assert found["memory_bytes"] >= found["available_memory_bytes"] > 0
    assert found["float32_gflops"] > 0


def test_check_for_people_names_the_blas_and_the_threads(scripts: Path) -> None:
    ran = _worker(scripts, "--check", CLUSTER__WORKER__ENGINES__THREADS="1")
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^\s*blas  \S+", ran.stdout, re.MULTILINE)
    assert re.search(r"^\s*threads  1$", ran.stdout, re.MULTILINE)
    assert re.search(r"^\s*engines  \d+: \S+", ran.stdout, re.MULTILINE)
    assert re.search(r"^\s*memory  [\d.]+ GiB$", ran.stdout, re.MULTILINE)
    assert "warning" not in ran.stderr


def test_only_what_is_built_in_can_be_fetched(scripts: Path) -> None:
    ran = _worker(scripts, "--fetch", "other")
    assert ran.returncode == 2
    assert "'other'" in ran.stderr and "Traceback" not in ran.stderr


def test_a_bad_setting_is_told_as_json_to_programs(scripts: Path, tmp_path: Path) -> None:
    ran = _worker(scripts, "--json", "--config", str(tmp_path / "none.yaml"))
    assert ran.returncode == 2
    error = json.loads(ran.stderr)["error"]
    assert error["code"] == "settings" and "none.yaml" in error["message"]


@pytest.mark.anyio
async def test_a_second_worker_of_the_same_name_is_refused_and_the_first_goes_on(
    scripts: Path, nats_server: RunningNats, tiny_model: Path, bus: Bus, tmp_path: Path
) -> None:
    identity = WorkerId("worker-1")
    wire = Wire(bus)
    await wire.listen()
    arguments = ["--nats", nats_server.url, "--id", identity, "--model", str(tiny_model)]
    key = environment("worker", identity, nats_server.url)
    with (tmp_path / "log").open("w") as log:
        first = await asyncio.create_subprocess_exec(
            scripts / "worker", *arguments, stderr=log, env={**os.environ, **key}
        )
    try:
        await wire.wait(lambda: bool(wire.on(subjects.worker_event(identity))))
        second = await asyncio.to_thread(_worker, scripts, *arguments, **key)
        assert second.returncode == 2
        assert identity in second.stderr and "--id" in second.stderr

        answer = await bus.request(subjects.worker_health(identity), b"", timeout_s=30)
        report = decode(WorkerHealth, answer.payload).worker
        assert report.id == identity
        assert [model.id for model in report.models] == [str(tiny_model)]
        first.terminate()
        async with asyncio.timeout(_LIMIT_S):
            assert await first.wait() == 0
        await wire.wait(lambda: b'"left"' in wire.on(subjects.worker_event(identity))[-1])
    finally:
        if first.returncode is None:
            first.kill()
            await first.wait()


def test_with_json_a_worker_logs_json_lines(scripts: Path) -> None:
    with subprocess.Popen(
        [scripts / "worker", "--json", "--nats", "nats://127.0.0.1:1", "--id", "j"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CLUSTER__LOGGING__FORMAT": "text"},
    ) as process:
        assert process.stderr is not None
        line = json.loads(process.stderr.readline())
        process.terminate()
    assert line["kind"] == "worker" and "cannot reach NATS" in line["message"]
