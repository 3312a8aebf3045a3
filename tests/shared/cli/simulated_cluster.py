"""A simulated cluster: it answers health and control with what each test gives it."""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared import subjects
from shared.access.roles import Role
from shared.bus import Bus, IncomingMessage
from shared.codec import decode, encode
from shared.ids import LOCAL_CLIENT, ModelId, WorkerId
from shared.messages.control import (
    CONTROL_ORDERS,
    ControlOrder,
    ControlReply,
    DrainWorker,
    LoadModel,
    UnloadModel,
)
from shared.messages.model_status import ModelStatus
from shared.messages.worker_report import WorkerReport
from tests.access.roles import environment
from tests.shared.cli.reports import cluster

ROOT = Path(__file__).parents[3]
LIMIT_S = 30


class SimulatedCluster:
    """One controller and its workers.

    Attributes:
        workers: what the health tells.
        stages: what a worker says of the model it was told to load, one question after another;
            the last one stays.
        lives: what is told of a worker that was told to drain, one question after another; None
            where it is gone. The last one stays.
        refusal: the code and message with which every order is refused.
        silent: workers that answer nothing.
        orders: those that came, but for questions.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.workers: list[WorkerReport] = []
        self.stages: dict[WorkerId, list[ModelStatus]] = {}
        self.lives: dict[WorkerId, list[WorkerReport | None]] = {}
        self.refusal: tuple[str, str] | None = None
        self.silent: set[WorkerId] = set()
        self.orders: list[tuple[WorkerId, ControlOrder]] = []
        self.asked = asyncio.Queue[None]()

    async def open(self) -> None:
        await self._bus.subscribe(subjects.HEALTH_CLUSTER, self._on_health)
        await self._bus.subscribe("mlx.worker.*.control.*", self._on_control)
        await self._bus.flush()

    async def _on_health(self, message: IncomingMessage) -> None:
        self.asked.put_nowait(None)
        present = [now for one in self.workers if (now := self._now(one)) is not None]
        await self._bus.publish(message.reply, encode(cluster(*present)))

    def _now(self, worker: WorkerReport) -> WorkerReport | None:
        if worker.id not in self.drained or (life := self.lives.get(worker.id)) is None:
            return worker
        return life.pop(0) if len(life) > 1 else life[0]

    async def _on_control(self, message: IncomingMessage) -> None:
        _, _, worker, _, verb = message.subject.split(".")
        if worker in self.silent:
            return
        order = decode(CONTROL_ORDERS[verb], message.payload)
        await self._bus.publish(message.reply, encode(self._reply(WorkerId(worker), order)))

    def _reply(self, worker: WorkerId, order: ControlOrder) -> ControlReply:
        if order.verb == "models":
            stages = self.stages[worker]
            status = stages.pop(0) if len(stages) > 1 else stages[0]
            return ControlReply(worker=worker, ok=True, models=[status])
        self.orders.append((worker, order))
        if self.refusal is not None:
            code, why = self.refusal
            return ControlReply(worker=worker, ok=False, code=code, message=why)
        if isinstance(order, UnloadModel):
            self._unload(worker, order.model)
        return ControlReply(worker=worker, ok=True)

    def _unload(self, worker: WorkerId, model: ModelId) -> None:
        gone = {"state": "available", "idle_s": None}
        self.workers = [
            report.model_copy(
                update={
                    "models": [
                        one.model_copy(update=gone)
                        if (report.id, one.id) == (worker, model)
                        else one
                        for one in report.models
                    ]
                }
            )
            for report in self.workers
        ]

    @property
    def drained(self) -> list[WorkerId]:
        """The workers that were told to drain, in that order."""
        return [worker for worker, order in self.orders if isinstance(order, DrainWorker)]

    @property
    def loads(self) -> list[WorkerId]:
        """The workers that were told to load something."""
        return sorted(worker for worker, order in self.orders if isinstance(order, LoadModel))


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a command."""

    status: int
    out: str
    err: str


def environment_of(role: Role, arguments: Sequence[str]) -> dict[str, str]:
    """What proves who somebody of that role is at the server that a command is told of, if any."""
    if "--nats" not in arguments:
        return {}
    return environment(role, LOCAL_CLIENT, arguments[arguments.index("--nats") + 1])


async def run(
    *arguments: str,
    role: Role = "admin",
    columns: int = 80,
    limit_s: float = LIMIT_S,
    said: str = "",
) -> Ran:
    """`cluster` as a person of that role types it, neither its input nor its output a terminal.

    Args:
        said: what its standard input has.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "shared.cli", *arguments),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": str(columns), **environment_of(role, arguments)},
    )
    out, err = await asyncio.wait_for(process.communicate(said.encode()), limit_s)
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())
