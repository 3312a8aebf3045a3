"""A controller that runs in this process on a real server, and a client beside it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from controller.lifecycle.machine import RequestStateMachine
from controller.service import Controller
from shared import subjects
from shared.bus import Bus
from shared.codec import decode, encode
from shared.ids import LOCAL_CLIENT, ControllerId, ModelId, RequestId, SkillName
from shared.logs import BusLogHandler
from shared.messages.control import RequestState
from shared.messages.dispatch import Dispatch, Transfer, TransferReply
from shared.messages.request import InferenceRequest
from shared.messages.stream import FailedMessage, StatusMessage, StreamMessage
from shared.service import StopSignal
from shared.settings import ClusterSettings
from shared.settings.nats import NatsSettings
from shared.telemetry import Tracer
from tests.access.roles import connect_as, is_secured
from tests.controller.inbox import Inbox
from tests.controller.simulated_worker import WAIT_S, SimulatedWorker

CONTROLLER = ControllerId("c-1")
PATIENT = {
    "dispatch": {"ack_timeout_ms": 10_000},
    "failover": {"heartbeat_interval_ms": 300, "missed_heartbeats": 100},
    "waiting_room": {"enabled": False},
}
"""Nothing times out by itself, however slow this machine is, and who finds no room hears so."""


class Running:
    """A running controller. `task` is its whole life, which `stop` ends."""

    def __init__(
        self, bus: Bus, controller: Controller, task: "asyncio.Task[None]", stop: StopSignal
    ) -> None:
        self.stop = stop
        self.bus = bus
        self.controller = controller
        self.task = task

    @property
    def leads(self) -> bool:
        return self.controller.report().leader

    @property
    def serves(self) -> bool:
        """It leads, and takes requests."""
        return self.controller._handler._leader is not None

    @property
    def known_leaders(self) -> list[ControllerId]:
        """Of the other controllers those that lead, as it has heard."""
        known = self.controller._registry.controllers
        return [one.id for one in known if one.leader and one.id != self.controller.id]

    @property
    def follows(self) -> bool:
        """It stands by, and knows who leads."""
        return not self.leads and bool(self.known_leaders)

    @property
    def machine(self) -> RequestStateMachine:
        """Of this controller, which leads."""
        leader = self.controller._leader
        assert leader is not None
        return leader.machine

    @property
    def first_attempt(self) -> int:
        """The number of a request's first dispatch in this term. What the leader itself says before
        has one less; 0 while the request may not begin."""
        return 1000 * (self.machine.term - 1) + 1

    async def worker(self, name: str, *, boot: str = "b1", **fields: Any) -> SimulatedWorker:
        """A simulated worker that the controller has claimed."""
        worker = SimulatedWorker(self.bus, name, boot=boot, **fields)
        await worker.join()
        await self.until(lambda: self.claimed(worker))
        return worker

    def knows(self, worker: SimulatedWorker) -> bool:
        """Whether it has heard of that boot of a worker."""
        return self.controller._registry.is_alive(worker.id, worker.boot)

    def claimed(self, worker: SimulatedWorker) -> bool:
        view = self.controller._registry.worker(worker.id)
        return view is not None and view.claimed and view.report.boot_id == worker.boot

    async def until_claimed(self, worker: SimulatedWorker) -> None:
        """Return when it has claimed a worker, which says meanwhile how it stands."""
        async with asyncio.timeout(WAIT_S):
            while not self.claimed(worker):
                await worker.say("heartbeat")
                await asyncio.sleep(0.05)

    def hears(self, other: ControllerId) -> bool:
        """Whether it has heard of another controller that is ready."""
        known = self.controller._registry.controllers
        return any(one.id == other and one.state == "ready" for one in known)

    async def ask(self, *, subject: str = "mlx.infer.local.chat", **body: Any) -> Inbox:
        """Publish a request, with an inbox of its own for the answer: one of that client."""
        client, _ = subjects.parse_infer(subject)
        unique = self.bus.new_inbox().rpartition(".")[2]
        prefix = subjects.inbox_prefix("client", client)
        inbox = await Inbox(self.bus, f"{prefix}.{unique}").open()
        await self.send(inbox, subject=subject, **body)
        return inbox

    async def ask_with(self, headers: Mapping[str, str], **body: Any) -> Inbox:
        """Publish a request that has headers."""
        inbox = await Inbox(self.bus, self.bus.new_inbox()).open()
        payload = json.dumps({"prompt": "x", **body}).encode()
        subject = "mlx.infer.local.chat"
        await self.bus.publish(subject, payload, reply=inbox.subject, headers=headers)
        return inbox

    async def begin(self, **body: Any) -> Inbox:
        """Publish a request, as `ask` does; return once a worker has accepted it."""
        inbox = await self.ask(**body)
        await inbox.accepted()
        return inbox

    async def send(
        self, inbox: Inbox, *, subject: str = "mlx.infer.local.chat", **body: Any
    ) -> None:
        payload = json.dumps({"prompt": "x", **body}).encode()
        await self.bus.publish(subject, payload, reply=inbox.subject)

    async def transfer(self, *, elapsed_ms: float, **body: Any) -> Inbox:
        """Give it a request, as the leader before does, to which it came so long ago."""
        inbox = await Inbox(self.bus, self.bus.new_inbox()).open()
        dispatch = Dispatch(
            request_id=RequestId("r"),
            client=LOCAL_CLIENT,
            skill=SkillName("chat"),
            model=ModelId("demo"),
            attempt=0,
            inboxes=[inbox.subject],
            seed=5,
            elapsed_ms=elapsed_ms,
            request=InferenceRequest(**{"prompt": "x", **body}),
        )
        transfer = Transfer(controller=ControllerId("c-0"), term=0, requests=[dispatch])
        subject = subjects.controller_transfer(self.controller.id)
        answer = await self.bus.request(subject, encode(transfer), timeout_s=WAIT_S)
        assert decode(TransferReply, answer.payload).taken
        return inbox

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

    async def leave(self) -> None:
        """End it in good order."""
        self.stop.request()
        await self.ended()

    async def die(self) -> None:
        """As if its process were killed: without a word, its connection ends."""
        self.task.cancel()
        await asyncio.wait([self.task], timeout=WAIT_S)
        await self.controller._bus.close()

    async def ended(self) -> None:
        """Return when it has ended; if it failed, say how."""
        await asyncio.wait([self.task], timeout=WAIT_S)
        assert self.task.done(), "it goes on"
        if not self.task.cancelled():
            self.task.result()

    async def settle(self) -> None:
        """Return when the controller has handled what was published before on our connection,
        and what it published meanwhile has arrived here."""
        health = subjects.controller_health(self.controller.id)
        for _ in range(2):
            await self.bus.request(health, b"", timeout_s=WAIT_S)


@contextlib.asynccontextmanager
async def running_controller(
    nats: NatsSettings,
    bus: Bus,
    *,
    name: ControllerId = CONTROLLER,
    models: Sequence[str] = ("demo",),
    strict: bool | None = None,
    most_per_client: int = 1000,
    tracer: Tracer | None = None,
    **sections: dict[str, Any],
) -> AsyncIterator[Running]:
    """Run a controller on a connection of its own, which leads or knows who does; end it in haste.

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
    logs = BusLogHandler("controller", name)
    controller = Controller(settings, own, name, logs, tracer=tracer)
    stop = StopSignal()
    task = asyncio.create_task(controller.run(stop))
    running = Running(bus, controller, task, stop)
    try:
        await running.until(lambda: running.serves or running.follows)
        await own.flush()
        yield running
    finally:
        stop.request(immediate=True)
        try:
            await running.ended()
        finally:
            await own.close()


def accepted(message: StreamMessage) -> StatusMessage:
    assert isinstance(message, StatusMessage) and message.status == "accepted"
    return message


def failed(message: StreamMessage) -> FailedMessage:
    assert isinstance(message, FailedMessage)
    return message


async def running_state(cluster: Running, request_id: str) -> str:
    """The state once the ack has arrived."""
    async with asyncio.timeout(10):
        while (state := await cluster.query("status", request_id)).state == "dispatching":
            pass
    return state.state
