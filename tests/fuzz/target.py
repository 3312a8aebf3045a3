"""The attacked cluster: real processes, with what the judge needs to know of them."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from shared.settings.nats import NatsSettings
from tests.access.roles import as_client, as_tester
from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process, make_key
from tests.processes import ClusterProcess, cluster_process

ATTACKER, WITNESS = "local", "ada"


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Of one process at one moment.

    Attributes:
        port: local end of its connection to NATS; another one after a reconnect. None for a process
            without one.
    """

    name: str
    port: int | None
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Target:
    """
    Attributes:
        secured: NATS and the gateway ask for keys.
        keys: of the gateway, by client; empty if it asks for none.
    """

    cluster: ClusterProcess
    gateway: GatewayProcess
    secured: bool
    keys: dict[str, str]

    def nats(self, client: str) -> NatsSettings:
        return as_client(self.cluster.url, client)

    @property
    def tap(self) -> NatsSettings:
        """Of what may hear everything."""
        return as_tester(self.cluster.url)

    def states(self) -> dict[int, ProcessState]:
        """The processes that run now, by pid."""
        server = urlsplit(self.cluster.url).port
        running = [*self.cluster.processes(), psutil.Process(self.gateway.process.pid)]
        found = {}
        for process in running:
            with contextlib.suppress(psutil.Error):
                ports = [
                    each.laddr.port
                    for each in process.net_connections("tcp")
                    if each.raddr and each.raddr.port == server
                ]
                memory = process.memory_info().rss
                name = _name(process.cmdline())
                found[process.pid] = ProcessState(name, ports[0] if ports else None, memory)
        return found


@contextlib.contextmanager
def target(folder: Path, model: Path, *, secured: bool) -> Iterator[Target]:
    """Start a controller, two workers and a gateway; open, or with keys for everybody.

    Args:
        folder: for the gateway's keys.
    """
    keys: dict[str, str] = {}
    arguments: tuple[str, ...] = ()
    if secured:
        file = folder / "keys.json"
        keys = {client: make_key(file, client) for client in (ATTACKER, WITNESS)}
        arguments = ("--keys-file", str(file))
    with (
        cluster_process(workers=2, model=str(model), secured=secured) as cluster,
        gateway_process(cluster.url, *arguments) as gateway,
    ):
        yield Target(cluster, gateway, secured, keys)


def _name(command: Sequence[str]) -> str:
    """What a process is, by its command line."""
    line = " ".join(command)
    if "worker.engine" in line:
        return "engine"
    for name in ("nats-server", "gateway"):
        if name in line:
            return name
    if "--id" in command:
        return command[command.index("--id") + 1]
    return line[:60]
