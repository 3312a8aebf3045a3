"""Prometheus and promtool, where they are installed, for tests of deploy/prometheus and
deploy/grafana."""

import contextlib
import json
import math
import os
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.examples import DEPLOY
from tests.processes import free_port, wait_for

CONFIGURATION = DEPLOY / "prometheus" / "prometheus.yml"
SCRAPE_INTERVAL_S = 1
_ENDS_WITHIN_S = 20.0


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`.

    Without it the test is skipped, or fails where `.ci/run` should have installed it.
    """
    if (path := shutil.which(name)) is not None:
        return path
    missing = f"{name} is not installed (docs/operate.md#metrics says how to install it)"
    if os.environ.get("CI") == "true":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


def promtool(*arguments: str | Path, text: str | None = None) -> str:
    """Run promtool, which must find nothing; return what it says."""
    done = subprocess.run(
        [program("promtool"), *arguments], input=text, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


@dataclass(frozen=True, slots=True)
class Series:
    """A series of a range query: its labels, and its values in order of time."""

    labels: Mapping[str, str]
    values: tuple[float, ...]

    @property
    def figures(self) -> tuple[float, ...]:
        """The values that a chart can show: a ratio is NaN while nothing happens."""
        return tuple(value for value in self.values if math.isfinite(value))


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server."""

    url: str
    started: float
    log: Path

    def over_time(self, query: str) -> list[Series]:
        """The series of a query from the server's start until now, one value per scrape."""
        found = self._get(
            "query_range", query=query, start=str(self.started),
            end=str(time.time() + SCRAPE_INTERVAL_S),  # the last point is not earlier than now
            step=str(SCRAPE_INTERVAL_S),
        )  # fmt: skip
        return [
            Series(each["metric"], tuple(float(value) for _, value in each["values"]))
            for each in found["result"]
        ]

    def value(self, query: str) -> float:
        """The sum of a query's values now; 0 if there are none."""
        return sum(float(each["value"][1]) for each in self._get("query", query=query)["result"])

    def targets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get("targets", state="active")["activeTargets"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/-/ready") as answer:
            return bool(answer.status == 200)
        return False

    def _get(self, what: str, **parameters: str) -> dict[str, Any]:
        address = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=20) as answer:
            body: dict[str, Any] = json.load(answer)
        assert body["status"] == "success", body
        data: dict[str, Any] = body["data"]
        return data


@contextlib.contextmanager
def prometheus(folder: Path, targets: Mapping[str, Sequence[str]]) -> Iterator[Prometheus]:
    """Run a server with our configuration, other targets and shorter intervals.

    Args:
        folder: for its storage.
        targets: `host:port` by the name of the job.
    """
    configuration = yaml.safe_load(CONFIGURATION.read_text())
    interval = f"{SCRAPE_INTERVAL_S}s"
    configuration["global"] = {"scrape_interval": interval, "evaluation_interval": interval}
    configuration["rule_files"] = [
        str(CONFIGURATION.parent / file) for file in configuration["rule_files"]
    ]
    jobs = {job["job_name"]: job for job in configuration["scrape_configs"]}
    assert jobs.keys() == targets.keys()
    for name, job in jobs.items():
        job["static_configs"] = [{"targets": list(targets[name])}]
    file, log, port = folder / "prometheus.yml", folder / "prometheus.log", free_port()
    file.write_text(yaml.safe_dump(configuration))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'storage'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            cwd=folder, stdout=output, stderr=output,
        )  # fmt: skip
    server = Prometheus(f"http://127.0.0.1:{port}", time.time(), log)
    try:
        wait_for(
            lambda: process.poll() is not None or server.is_ready(),
            "Prometheus",
            explain=log.read_text,
        )
        assert process.poll() is None, log.read_text()
        yield server
    finally:
        process.terminate()
        try:
            process.wait(_ENDS_WITHIN_S)
        finally:
            process.kill()
            process.wait()
