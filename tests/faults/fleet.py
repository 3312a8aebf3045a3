"""The cluster that faults happen to: NATS servers, controllers and workers, each a process of its
own behind a line of its own, started again by a supervisor whenever it ends."""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal

import nats
import psutil

from shared.bus.client import PatchedNatsClient
from shared.settings.nats import NatsSettings
from tests.access.roles import (
    as_client,
    drawn,
    environment,
    register,
    server_settings,
)
from tests.faults.child import new_clock
from tests.faults.evidence import Observation
from tests.faults.footprint import footprints
from tests.faults.member import Member
from tests.nats_proxy import NatsProxy
from tests.processes import MAX_PAYLOAD_BYTES, SCRIPTS, free_port
from tests.raw_client import plain_client

_START_LIMIT_S = 60.0
_END_LIMIT_S = 10.0
_LAME_DUCK_S = 30  # the least that the server allows
QUICK = {
    "CLUSTER__CONTROLLER__LEASE__TTL_S": "2",
    "CLUSTER__WORKER__ENGINES__HANG_TIMEOUT_MS": "2000",
}
"""Settings by which a fleet notices some kinds of silence in less than half of the usual time."""
QUICK_PACE = 0.6
"""How long faults need to last then."""


class Fleet:
    """All members, and what they say of themselves.

    Args:
        folder: for logs, stores and clocks.
        plants: the names of bugs that each process gets.
        settings: as environment variables, of all processes.
        secured: whether servers know their users; by default as the module's draw says.
    """

    def __init__(
        self,
        folder: Path,
        model: Path,
        *,
        workers: int = 3,
        controllers: int = 2,
        servers: int = 1,
        plants: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        secured: bool | None = None,
    ) -> None:
        self.folder = folder
        self._secured = drawn() if secured is None else secured
        self._plants = plants
        self._settings = {
            "FAULTS_FOLDER": str(folder.absolute()),
            "CLUSTER__LOGGING__FORMAT": "json",
            "CLUSTER__SKILLS": json.dumps({"chat": ["tiny"]}),
            "CLUSTER__MODELS": json.dumps({"tiny": {"path": str(model.absolute())}}),
            "CLUSTER__WORKER__MODELS": json.dumps(["tiny"]),
            "CLUSTER__WORKER__ENGINES__COUNT": "1",
            "CLUSTER__WORKER__ENGINES__THREADS": "1",
            "CLUSTER__WORKER__ENGINES__MAX_RESTARTS": "1000",
            "CLUSTER__WORKER__ENGINES__RESTART_DELAY_MS": "200",
            "CLUSTER__WORKER__KV_CACHE__DISK_MB": "64",
            **(settings or {}),
        }
        ports = [int(free_port()) for _ in range(2 * servers)]
        routes = [f"nats://127.0.0.1:{port}" for port in ports[servers:]]
        self.servers = [
            self._server(number, ports[number], routes if servers > 1 else [])
            for number in range(servers)
        ]
        self.urls = [f"nats://127.0.0.1:{port}" for port in ports[:servers]]
        for url in self.urls:
            register(url, self._secured)
        self.controllers = [self._member("controller", n) for n in range(1, controllers + 1)]
        self.workers = [self._member("worker", n) for n in range(1, workers + 1)]

    @property
    def settings(self) -> NatsSettings:
        """How a client connects that nothing is done to."""
        return as_client(self.urls[0]).model_copy(update={"servers": self.urls})

    @property
    def members(self) -> list[Member]:
        return [*self.servers, *self.controllers, *self.workers]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Meanwhile all of it runs; returns from the start when all are ready.

        Raises:
            AssertionError: that took too long.
        """
        async with contextlib.AsyncExitStack() as stack:
            supervisors: list[asyncio.Task[None]] = []
            stack.push_async_callback(self._end, supervisors)
            supervisors += [asyncio.create_task(one.supervise()) for one in self.servers]
            for member in [*self.controllers, *self.workers]:
                assert member.line is not None
                member.line.servers = NatsProxy(*self.urls).servers
                await stack.enter_async_context(member.line)
                member.command += ["--nats", member.line.url]
            await self._until_served()
            others = [*self.controllers, *self.workers]
            supervisors += [asyncio.create_task(one.supervise()) for one in others]
            await self.until_whole(_START_LIMIT_S)
            yield

    async def _end(self, supervisors: list[asyncio.Task[None]]) -> None:
        for supervisor in supervisors:
            supervisor.cancel()
        await asyncio.gather(*supervisors, return_exceptions=True)
        for member in reversed(self.members):
            if member.started:  # engines end with their workers
                member.send(signal.SIGKILL)
                await member.ended(_END_LIMIT_S)

    def client(self) -> AbstractAsyncContextManager[PatchedNatsClient]:
        """A plain connection that nothing is done to."""
        return plain_client(self.settings)

    async def health(self) -> dict[str, Any]:
        """What every controller and worker says of itself, by name; who is silent is absent."""
        found: dict[str, Any] = {}
        try:
            async with self.client() as client:
                for kind, members in (("controller", self.controllers), ("worker", self.workers)):
                    for member in members:
                        with contextlib.suppress(nats.errors.Error):
                            subject = f"mlx.health.{kind}.{member.name}"
                            answer = await client.request(subject, timeout=1)
                            found[member.name] = json.loads(answer.data)[kind]
        except (nats.errors.Error, OSError):
            pass
        return found

    async def until_whole(self, limit_s: float) -> None:
        """Return once all that is wanted is there and ready.

        Raises:
            AssertionError: not within the limit; says what is missing.
        """
        await self.until_well([m.name for m in [*self.controllers, *self.workers]], limit_s)

    async def until_well(self, names: Sequence[str], limit_s: float) -> None:
        """Return once these are there and ready.

        Raises:
            AssertionError: not within the limit; says what is missing.
        """
        deadline = time.monotonic() + limit_s
        while missing := [
            words for name, words in self._missing(await self.health()) if name in names
        ]:
            if time.monotonic() > deadline:
                raise AssertionError(f"not well within {limit_s:g} s: {missing}")
            await asyncio.sleep(0.2)

    def _missing(self, health: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Who is not well, and in what way."""
        members = [*self.controllers, *self.workers]
        missing = [
            (m.name, f"{m.name} is silent ({m.last_line()})")
            for m in members
            if m.name not in health
        ]
        for worker in self.workers:
            if (report := health.get(worker.name)) is None:
                continue
            alive = {engine.pid for engine in worker.engines}
            engines = {e["pid"] for e in report["engines"] if e["state"] == "running"}
            if report["state"] != "ready" or not engines or not engines <= alive:
                missing.append((worker.name, f"{worker.name} is {report['state']}"))
        return missing

    async def observation(self) -> Observation:
        """What controllers, workers and engines hold now."""
        reports = await self.health()
        counted = ("active_requests", "queued_requests")
        tasks = Counter[str]()
        controllers = {controller.name for controller in self.controllers}
        for name, report in reports.items():  # of controllers together: the one that leads has more
            tasks["the controllers" if name in controllers else name] += report["tasks"]
        return Observation(
            {
                name: sum(report.get(each, 0) for each in counted)
                for name, report in reports.items()
            },
            tasks,
            footprints(self._processes()),
        )

    def _processes(self) -> dict[str, psutil.Process]:
        """Controllers, workers and engines, by names that survive a replacement."""
        named: dict[str, psutil.Process] = {}
        for member in (*self.controllers, *self.workers):
            with contextlib.suppress(psutil.Error):
                named[member.name] = member.process
            for engine in member.engines if member.kind == "worker" else []:
                named[f"engine of {member.name}"] = engine
        return named

    async def _until_served(self) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        while True:
            with contextlib.suppress(nats.errors.Error, OSError):
                async with self.client() as client:
                    if len(self.servers) == 1 or len(client.servers) >= len(self.servers):
                        return
            last = [f"{server.name}: {server.last_line()}" for server in self.servers]
            assert time.monotonic() < deadline, f"the NATS servers did not start ({last})"
            await asyncio.sleep(0.1)

    def _server(self, number: int, port: int, routes: list[str]) -> Member:
        name = f"nats-{number + 1}"
        log = self.folder / f"{name}.log"
        settings: dict[str, Any] = {
            "server_name": name,
            "host": "127.0.0.1",
            "port": port,
            "max_payload": MAX_PAYLOAD_BYTES,
            "jetstream": {"store_dir": str(self.folder / name)},
            "lame_duck_duration": f"{_LAME_DUCK_S}s",
            "lame_duck_grace_period": "1s",
            **(server_settings(log) if self._secured else {}),
        }
        if routes:
            own = int(routes[number].rsplit(":", 1)[1])
            settings["cluster"] = {
                "name": "fleet", "host": "127.0.0.1", "port": own, "routes": routes,
                "no_advertise": self._secured,  # lines do not see what is encrypted
            }  # fmt: skip
        config = self.folder / f"{name}.json"
        config.write_text(json.dumps(settings))
        command = [str(SCRIPTS / "nats-server"), "--config", str(config)]
        return Member("nats", name, command, log, {})

    def _member(self, kind: Literal["controller", "worker"], number: int) -> Member:
        name = f"{kind}-{number}"
        clock = self.folder / f"{name}.clock"
        new_clock(clock)
        command = [sys.executable, "-m", "tests.faults.child", "--clock", str(clock)]
        command += [
            *(word for name in self._plants for word in ("--plant", name)),
            kind,
            "--id",
            name,
        ]
        log = self.folder / f"{name}.log"
        own = {"CLUSTER__WORKER__KV_CACHE__DISK_PATH": str(self.folder / f"{name}.kv")}
        if kind == "controller":
            own["CLUSTER__LOGGING__LEVEL"] = "debug"  # which tells who took a request
        settings = {**own, **self._settings, **environment(kind, name, self.urls[0])}
        return Member(kind, name, command, log, settings, line=NatsProxy(), clock=clock)
