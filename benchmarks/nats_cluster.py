"""NATS servers that are one, with JetStream, on this machine; each can be killed and started
again."""

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.children import end, started
from benchmarks.stage import SCRIPTS

_LIMIT_S = 30


class NatsCluster:
    """
    Attributes:
        urls: of the servers.
    """

    def __init__(self, folder: Path, servers: int, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._ports = [_free_port() for _ in range(servers)]
        self._routes = [_free_port() for _ in range(servers)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.urls = [f"nats://127.0.0.1:{port}" for port in self._ports]

    def start(self, number: int) -> None:
        """Start one, and wait until it listens."""
        name = f"nats-{number}"
        config: dict[str, object] = {
            "server_name": name,
            "listen": f"127.0.0.1:{self._ports[number]}",
            "max_payload": 8 << 20,
            "jetstream": {"store_dir": str(self._folder / name)},
        }
        if len(self._ports) > 1:
            config["cluster"] = {
                "name": "bench",
                "listen": f"127.0.0.1:{self._routes[number]}",
                "routes": [f"nats://127.0.0.1:{port}" for port in self._routes],
            }
        path = self._folder / f"{name}.json"
        path.write_text(json.dumps(config))
        log = self._stack.enter_context((self._folder / f"{name}.log").open("ab"))
        command = [str(SCRIPTS / "nats-server"), "--config", str(path)]
        self._processes[number] = self._stack.enter_context(
            started(command, stdout=log, stderr=log)
        )
        deadline = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                with socket.create_connection(("127.0.0.1", self._ports[number]), timeout=1):
                    return
            time.sleep(0.02)
        raise SystemExit(f"{name} did not start")

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        end(self._processes[number])


@contextlib.contextmanager
def nats_cluster(folder: Path, servers: int) -> Iterator[NatsCluster]:
    with contextlib.ExitStack() as stack:
        cluster = NatsCluster(folder, servers, stack)
        for number in range(servers):
            cluster.start(number)
        yield cluster


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
