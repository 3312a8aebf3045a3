"""A controller that runs in this process on a real server, and a client beside it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from controller.requests.machine import RequestMachine
from controller.service import Controller
from shared import subjects
from shared.bus import Bus, Message
from shared.ids import ControllerId
from shared.logs import LogStore
from shared.messages.codec import decode
from shared.messages.control import RequestState
from shared.messages.stream import Failed, Status, StreamMessage
from shared.messages.stream import decode as decode_stream
from shared.service import StopRequest
from shared.settings import ClusterSettings
from shared.settings.tree import Nats
from tests.access.roles import connect_as, is_secured
from tests.controller.simulated_worker import WAIT_S, SimulatedWorker

CONTROLLER = ControllerId("c-1")
PATIENT = {
    "dispatch": {"ack_timeout_ms": 10_000},
    "failover": {"heartbeat_interval_ms": 300, "missed_heartbeats": 100},
    "waiting_room": {"enabled": False},
}
"""Nothing times out by itself, however slow this machine is, and who finds no room hears so."""


class Inbox:
    """What one client is sent."""

    def __init__(self, bus: Bus, subject: str) -> None:
        self.subject = subject
        self._bus = bus
        self._messages: asyncio.Queue[StreamMessage] = asyncio.Queue()

    async def open(self) -> "Inbox":
        self._subscription = await self._bus.subscribe(self.subject, self._take)
        return self

    async def leave(self) -> None:
        """Listen no more, without a word."""
        await self._subscription.unsubscribe()

    async def _take(self, message: Message) -> None:
        for one in decode_stream(message.payload):
            self._messages.put_nowait(one)

    async def next(self, limit_s: float = WAIT_S) -> StreamMessage:
        return await asyncio.wait_for(self._messages.get(), limit_s)

    async def end(self) -> Failed:
        """The next message but those that say on a busy machine that the request lives."""
        message = await self.next()
        while isinstance(message, Status):
            message = await self.next()
        return failed(message)

    def rest(self) -> list[StreamMessage]:
        """What is there without waiting."""
        return [self._messages.get_nowait() for _ in range(self._messages.qsize())]


class Running:
    """A running controller. `task` is its whole life, which `stop` ends."""

    def __init__(
        self, bus: Bus, controller: Controller, task: "asyncio.Task[None]", stop: StopRequest
    ) -> None:
        self.stop = stop
        self.bus = bus
        self.controller = controller
        self.task = task

    @property
    def machine(self) -> RequestMachine:
        """Of this controller, which leads."""
        leader = self.controller._leader
        assert leader is not None
        return leader.machine

    async def worker(self, name: str, **fields: Any) -> SimulatedWorker:
        """A simulated worker that the controller has claimed."""
        worker = SimulatedWorker(self.bus, name, **fields)
        await worker.join()
        await self.until(lambda: self.claimed(worker))
        return worker

    def claimed(self, worker: SimulatedWorker) -> bool:
        view = self.controller._registry.worker(worker.id)
        return view is not None and view.claimed and view.report.boot_id == worker.boot

    async def ask(self, *, subject: str = "mlx.infer.local.chat", **body: Any) -> Inbox:
        """Publish a request, with an inbox of its own for the answer: one of that client."""
        client, _ = subjects.parse_infer(subject)
        unique = self.bus.new_inbox().rpartition(".")[2]
        prefix = subjects.inbox_prefix("client", client)
        inbox = await Inbox(self.bus, f"{prefix}.{unique}").open()
        await self.send(inbox, subject=subject, **body)
        return inbox

    async def begin(self, **body: Any) -> Inbox:
        """Publish a request, as `ask` does; return once it is accepted."""
        inbox = await self.ask(**body)
        accepted(await inbox.next())
        return inbox

    async def send(
        self, inbox: Inbox, *, subject: str = "mlx.infer.local.chat", **body: Any
    ) -> None:
        payload = json.dumps({"prompt": "x", **body}).encode()
        await self.bus.publish(subject, payload, reply=inbox.subject)

    async def query(self, verb: str, request_id: str) -> RequestState:
        payload = json.dumps({"request_id": request_id}).encode()
        subject = f"mlx.request.local.{verb}"
        answer = await self.bus.request(subject, payload, timeout_s=WAIT_S)
        return decode(RequestState, answer.payload)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Poll: the controller tells no one of its inner changes."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                if self.task.done():
                    self.task.result()  # it failed: say how
                await asyncio.sleep(0.005)

    async def settle(self) -> None:
        """Return when the controller has handled what was published before on our connection,
        and what it published meanwhile has arrived here."""
        health = subjects.controller_health(self.controller.id)
        for _ in range(2):
            await self.bus.request(health, b"", timeout_s=WAIT_S)


@contextlib.asynccontextmanager
async def running_controller(
    nats: Nats,
    bus: Bus,
    *,
    name: ControllerId = CONTROLLER,
    models: Sequence[str] = ("demo",),
    strict: bool | None = None,
    most_per_client: int = 1000,
    **sections: dict[str, Any],
) -> AsyncIterator[Running]:
    """Run a controller on a connection of its own; end it in haste.

    Args:
        models: of the skill, the best first.
        nats: where the server is; the controller has a key of its own.
        strict: the inbox rule, and `most_per_client` that have not ended; by default it holds at
            a secured server.
        sections: of the settings of `controller`, instead of those of `PATIENT`.
    """
    controller_settings = {**PATIENT, **sections}
    settings = ClusterSettings.model_validate(
        {
            "nats": nats,
            "security": {
                "strict_inbox": is_secured(nats.servers[0]) if strict is None else strict,
                "max_requests_per_client": most_per_client,
            },
            "controller": controller_settings,
            "skills": {"chat": list(models)},
        }
    )
    own = await connect_as("controller", name, nats.servers[0])
    controller = Controller(settings, own, name, LogStore("controller", name))
    stop = StopRequest()
    task = asyncio.create_task(controller.run(stop))
    running = Running(bus, controller, task, stop)
    try:
        await running.until(lambda: controller.state == "ready" and controller._leader is not None)
        await own.flush()
        yield running
    finally:
        stop.request(in_haste=True)
        try:
            await asyncio.wait_for(task, WAIT_S)
        finally:
            await own.close()


def accepted(message: StreamMessage) -> Status:
    assert isinstance(message, Status) and message.status == "accepted"
    return message


def failed(message: StreamMessage) -> Failed:
    assert isinstance(message, Failed)
    return message


async def running_state(cluster: Running, request_id: str) -> str:
    """The state once the ack has arrived."""
    async with asyncio.timeout(10):
        while (state := await cluster.query("status", request_id)).state == "dispatching":
            pass
    return state.state
