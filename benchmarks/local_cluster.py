"""A real cluster for a benchmark: `cluster up` as a child, ended with it."""

import contextlib
import json
import os
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A running cluster. `processes`: pid by name (nats, controller-1, worker-1, engine-1)."""

    url: str
    processes: dict[str, int]


@contextlib.contextmanager
def local_cluster(
    *,
    workers: int = 1,
    model: str | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[LocalCluster]:
    """Start one on a free port, and end it; `settings` are environment variables."""
    command = [str(Path(sysconfig.get_path("scripts")) / "cluster"), "up", "--json"]
    command += ["--nats-port", "0", "--workers", str(workers)]
    command += ["--model", model] if model else []
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **settings}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the cluster did not start")
        yield LocalCluster(json.loads(line)["nats_url"], _processes(process.pid))
    finally:
        process.terminate()
        process.wait()


def _processes(parent: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for child in psutil.Process(parent).children(recursive=True):
        arguments = child.cmdline()
        if "worker.engine" in arguments:
            found[f"engine-{sum(name.startswith('engine') for name in found) + 1}"] = child.pid
        elif "--id" in arguments:
            found[arguments[arguments.index("--id") + 1]] = child.pid
        elif arguments and Path(arguments[0]).name == "nats-server":
            found["nats"] = child.pid
    return found
