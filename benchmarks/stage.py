"""Processes for benchmarks of what lies around the engines: a NATS server, a controller, simulated
workers, the gateway, a bare HTTP server. All on free ports, all ended with the benchmark."""

import contextlib
import json
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.request import urlopen

from benchmarks.children import started
from benchmarks.simulated_workers import MODEL

SCRIPTS = Path(sysconfig.get_path("scripts"))
_SETTINGS = {"CLUSTER__SKILLS": json.dumps({"chat": [MODEL]}), "CLUSTER__LOGGING__LEVEL": "warning"}
_LIMIT_S = 30


@dataclass(frozen=True, slots=True)
class Server:
    """A child that listens."""

    url: str
    pid: int


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster with simulated workers, and a gateway before it. `pids` by name."""

    nats_url: str
    monitor_url: str
    http_url: str
    pids: dict[str, int]

    def nats_figures(self, path: str) -> Any:
        """What the NATS server tells of itself, for example at `varz`."""
        with urlopen(f"{self.monitor_url}/{path}", timeout=_LIMIT_S) as answer:
            return json.load(answer)


@contextlib.contextmanager
def stage(*, workers: int, steps_per_s: float) -> Iterator[Stage]:
    """Start all of it, and wait until the gateway is ready."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-stage-")))
        nats_url, monitor_url, nats_pid = stack.enter_context(nats_server(folder))
        simulated = [sys.executable, "-m", "benchmarks.simulated_workers", "--nats", nats_url]
        simulated += ["--workers", str(workers), "--steps-per-s", str(steps_per_s)]
        controller = [str(SCRIPTS / "controller"), "--nats", nats_url, "--id", "controller-1"]
        pids = {
            "nats": nats_pid,
            "controller": stack.enter_context(child(controller, folder / "c.log", _SETTINGS)).pid,
            "workers": stack.enter_context(child(simulated, folder / "w.log")).pid,
        }
        gateway = stack.enter_context(gateway_process(nats_url, _SETTINGS))
        pids["gateway"] = gateway.pid
        _wait_until_ready(gateway.url)
        yield Stage(nats_url, monitor_url, gateway.url, pids)


@contextlib.contextmanager
def gateway_process(
    nats_url: str, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Server]:
    """A gateway of a cluster."""
    command = [str(SCRIPTS / "gateway"), "--json", "--nats", nats_url, "--port", "0"]
    quiet = {"CLUSTER__LOGGING__LEVEL": "warning", **settings}
    with _listening(command, quiet) as server:
        yield server


@contextlib.contextmanager
def bare_server(*arguments: str) -> Iterator[Server]:
    """`benchmarks.bare_http` with these arguments."""
    with _listening([sys.executable, "-m", "benchmarks.bare_http", *arguments], {}) as server:
        yield server


@contextlib.contextmanager
def _listening(command: Sequence[str], settings: Mapping[str, str]) -> Iterator[Server]:
    """A child that prints `{"http_url": ...}`."""
    with started(command, settings, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{command[0]} did not start")
        yield Server(json.loads(line)["http_url"], process.pid)


@contextlib.contextmanager
def child(
    command: Sequence[str], log: Path, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that writes to `log`; `settings` are environment variables."""
    with log.open("wb") as file, started(command, settings, stdout=file, stderr=file) as process:
        yield process


@contextlib.contextmanager
def nats_server(folder: Path) -> Iterator[tuple[str, str, int]]:
    """Its URL, that of its monitor, and its pid."""
    config = folder / "nats.json"
    ports = folder / "ports"
    ports.mkdir()
    listen = {"host": "127.0.0.1", "port": -1, "http": "127.0.0.1:-1", "max_payload": 8 << 20}
    config.write_text(
        json.dumps(listen | {"ports_file_dir": str(ports), "jetstream": {"store_dir": str(folder)}})
    )
    with child([str(SCRIPTS / "nats-server"), "--config", str(config)], folder / "n.log") as own:
        deadline = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline:
            for file in ports.glob("*.ports"):
                with contextlib.suppress(ValueError):
                    told = json.loads(file.read_text())
                    yield told["nats"][0], told["monitoring"][0], own.pid
                    return
            time.sleep(0.02)
        raise SystemExit("the NATS server did not start")


def _wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            with urlopen(f"{url}/ready", timeout=1):
                return
        time.sleep(0.1)
    raise SystemExit("the gateway did not become ready")
