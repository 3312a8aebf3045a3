"""The processes of `cluster up`: NATS server, controller, workers, and optionally a gateway."""

import asyncio
import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import orjson

from shared.cli.local.access import LocalAccessControl, credential_variables
from shared.cli.local.child import Child
from shared.cli.local.http_gateway import HttpGatewayProcess
from shared.cli.local.nats_server import NatsServer
from shared.cli.local.programs import program_path
from shared.errors import ClusterError, SettingsError
from shared.folders import make_private
from shared.ids import LOCAL_CLIENT, ModelId
from shared.settings import ClusterSettings
from shared.settings.nats import NatsSettings

_MAX_RESTARTS = 5
_RESTART_WINDOW_S = 60.0
_RESTART_DELAY_S = 1.0
_STOP_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """What to start.

    Attributes:
        model: the model of the skill chat, instead of the configured ones; None to keep those.
        folder: for logs, the JetStream store and the configuration of the NATS server.
        metrics_port: of the first process that serves metrics, the others have the next ones; 0 for
            any free ones; None for no metrics.
        environment: settings for the child processes, as environment variables.
    """

    workers: int
    host: str
    port: int
    access: LocalAccessControl
    config: Path | None
    model: str | None
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    metrics_port: int | None = None


class LocalCluster:
    """All processes of a cluster on this machine."""

    def __init__(
        self, plan: LocalPlan, settings: ClusterSettings, print_status: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._print_status = print_status
        make_private(plan.folder / "logs")
        for old_log in (plan.folder / "logs").glob("*.log"):
            old_log.unlink()
        self.nats = NatsServer(plan.folder, plan.host, plan.port, plan.access.server_settings)
        self.controller_ids = ["controller-1"]
        self.worker_ids = [f"worker-{number}" for number in range(1, plan.workers + 1)]
        self.metrics_ports: Mapping[str, int] = {}
        self._controllers: list[Child] = []
        self._workers: list[Child] = []
        self._gateway: HttpGatewayProcess | None = None
        self._stopping = False

    @property
    def client(self) -> NatsSettings:
        """Return how a client on this machine connects."""
        return self._plan.access.nats(self.nats.url, "client", LOCAL_CLIENT)

    @property
    def http_url(self) -> str | None:
        """URL of the gateway, or None without a gateway."""
        return self._gateway.url if self._gateway is not None else None

    async def start(self) -> None:
        """Start all processes; return before the workers are ready.

        Raises:
            ClusterError: the NATS server or the gateway does not start.
        """
        names = [*self.controller_ids, *self.worker_ids]
        own = self._settings.worker.metrics
        if (first := self._plan.metrics_port) is not None:
            self.metrics_ports = metrics_ports(names, first)
        elif own.enabled and len(self.worker_ids) > 1:  # they cannot share the port of the settings
            self.metrics_ports = metrics_ports(self.worker_ids, own.port)
        await self.nats.start()
        for name in self.controller_ids:
            self._controllers.append(self._child("controller", name, self._arguments(name)))
        for name in self.worker_ids:
            self._workers.append(self._child("worker", name, self._arguments(name)))
        for child in [*self._controllers, *self._workers]:
            await child.start()
        if self._settings.gateway.enabled:
            self._gateway = HttpGatewayProcess(self._settings.gateway, self._gateway_child)
            await self._gateway.start()

    async def watch(self) -> None:
        """Restart processes that end unexpectedly; run until cancelled.

        Raises:
            ClusterError: a process ended too often.
        """
        async with asyncio.TaskGroup() as tasks:
            for child in [self.nats.child, *self._controllers, *self._workers, *self._gateways]:
                tasks.create_task(self._keep_running(child))

    async def stop(self) -> None:
        """Stop all processes.

        The order lets requests finish: the gateway drains while workers still answer, workers drain
        while controllers still follow the requests, and the NATS server carries all messages.
        """
        self._stopping = True
        worker, gateway = self._settings.worker, self._settings.gateway
        longest_ms = max(worker.drain_timeout_ms, gateway.drain_timeout_ms)
        patience_s = longest_ms / 1000 + _STOP_PATIENCE_S
        for children in (self._gateways, self._workers, self._controllers, [self.nats.child]):
            await asyncio.gather(*(child.stop(patience_s) for child in children))

    async def kill(self) -> None:
        """Kill all processes."""
        self._stopping = True
        children = [*self._gateways, *self._workers, *self._controllers, self.nats.child]
        await asyncio.gather(*(child.kill() for child in children if child.running))

    async def _keep_running(self, child: Child) -> None:
        exit_times: deque[float] = deque()
        while True:
            status = await child.wait()
            if self._stopping:
                return
            if status == 0 and child in self._workers:
                self._print_status(f"{child.name} was drained")
                return
            exit_times.append(time.monotonic())
            while exit_times[-1] - exit_times[0] > _RESTART_WINDOW_S:
                exit_times.popleft()
            if status == 2 or len(exit_times) > _MAX_RESTARTS:  # 2: invalid settings
                raise ClusterError(f"{child.name} ended ({status}):\n{child.last_lines()}")
            self._print_status(f"{child.name} ended ({status}) and is restarted. Log: {child.log}")
            await asyncio.sleep(_RESTART_DELAY_S)
            if child is self.nats.child:
                await self.nats.start()
            else:
                await child.start()

    @property
    def _gateways(self) -> list[Child]:
        return [self._gateway.child] if self._gateway is not None else []

    def _gateway_child(self, arguments: Sequence[str]) -> Child:
        return self._child("gateway", "gateway", ["--id", "gateway", *arguments])

    def _arguments(self, name: str) -> list[str]:
        """Return those of a controller or worker."""
        port = self.metrics_ports.get(name)
        return ["--id", name, *(("--metrics-port", str(port)) if port is not None else ())]

    def _child(
        self, kind: Literal["controller", "worker", "gateway"], name: str, arguments: Sequence[str]
    ) -> Child:
        command = [program_path(kind), "--nats", self.nats.url, *arguments]
        if self._plan.config is not None:
            command += ["--config", str(self._plan.config.absolute())]
        log = self._plan.folder / "logs" / f"{name}.log"
        nats = self._plan.access.nats(self.nats.url, kind, name)
        return Child(name, command, log, {**credential_variables(nats), **self._environment()})

    def _environment(self) -> dict[str, str]:
        """Settings that this command overrides for its child processes."""
        environment = {"CLUSTER__LOGGING__FORMAT": "json"}
        if self._plan.workers > 1:
            environment |= self._engines_environment()
        if self._plan.model is not None:
            environment |= self._model_environment(self._plan.model)
        return {**environment, **self._plan.environment}

    def _engines_environment(self) -> dict[str, str]:
        """Engine settings if several workers share the cores: one engine each unless configured."""
        engines = self._settings.worker.engines
        count = 1 if engines.count == "auto" else engines.count
        share = max(1, (os.cpu_count() or 1) // (self._plan.workers * count))
        threads = engines.fixed_threads or share
        return {
            "CLUSTER__WORKER__ENGINES__COUNT": str(count),
            "CLUSTER__WORKER__ENGINES__THREADS": str(threads),
        }

    def _model_environment(self, model: str) -> dict[str, str]:
        path = Path(model).expanduser()
        name = ModelId(path.name if path.is_dir() else model)
        environment = {
            "CLUSTER__SKILLS": orjson.dumps({"chat": [name]}).decode(),
            "CLUSTER__WORKER__MODELS": orjson.dumps([name]).decode(),
        }
        if path.is_dir():
            source = {name: {"path": str(path.absolute())}}
            environment["CLUSTER__MODELS"] = orjson.dumps(source).decode()
        return environment


def metrics_ports(names: Sequence[str], first: int) -> dict[str, int]:
    """Return the ports on which processes serve metrics: one after another, or free ones for 0.

    Raises:
        SettingsError: a port is in use, or there are not enough.
    """
    found: dict[str, int] = {}
    with contextlib.ExitStack() as probes:  # held open, so that each free port is another one
        for number, name in enumerate(names):
            probe = probes.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = first + number if first else 0
            try:
                probe.bind(("127.0.0.1", port))
            except (OSError, OverflowError) as error:
                raise SettingsError(
                    f"--metrics-port: {name} cannot listen on 127.0.0.1:{port}: {error}"
                ) from None
            found[name] = probe.getsockname()[1]
    return found
