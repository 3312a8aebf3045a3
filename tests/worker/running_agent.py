"""A real agent with a real engine, and a leader and client played by the test."""

import asyncio
import itertools
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import orjson
import psutil
from pydantic import BaseModel

from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.change_notifier import ChangeNotifier
from shared.codec import decode, encode
from shared.ids import BootId, ClientName, ControllerId, ModelId, RequestId, SkillName, WorkerId
from shared.logs import BusLogHandler
from shared.messages.control import CancelRequest, ClaimWorker, ControlReply
from shared.messages.dispatch import Dispatch, DispatchBatch, DispatchReply
from shared.messages.events import WorkerEvent
from shared.messages.health import WorkerHealth
from shared.messages.request import InferenceRequest
from shared.messages.request_events import AttemptFailed, RequestEvent, RequestEvents
from shared.messages.stream import DoneMessage, FailedMessage, StreamMessage
from shared.messages.stream import decode as decode_stream
from shared.messages.worker_report import WorkerReport
from shared.service import StopSignal
from shared.settings import ClusterSettings
from tests.access.members import NAMES
from tests.access.roles import as_role, as_tester, connect_as, is_secured
from tests.processes import wait_until
from tests.worker.heard import Heard
from worker.agent.agent import WorkerAgent

CLIENT = ClientName("local")
OWNER = ControllerId("by-hand")
TINY = ModelId("tiny")
ENDLESS = {"256": -100.0, "257": -100.0}
"""A bias that keeps the tiny model from ending its answer."""
LIMIT_S = 30

E = TypeVar("E", bound=BaseModel)
_numbers = itertools.count(1)
_names = itertools.cycle(NAMES["worker"])
"""Few enough that a server can know all of them."""


def _request_events(owner: ControllerId) -> str:
    return f"mlx.event.request.{owner}"


class Wire:
    """Everything that passes over NATS, in one order, as one connection gets it."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.log: list[IncomingMessage] = []
        self._by_subject: defaultdict[str, list[bytes]] = defaultdict(list)
        self._bodies: defaultdict[ControllerId, list[RequestEvents]] = defaultdict(list)
        self._changes = ChangeNotifier()

    async def listen(self) -> None:
        # One subscription for all: only within one is the order of callbacks certain. Not
        # ">", which would leave no subject without a responder.
        await self.bus.subscribe("*.event.>", self._record)

    def new_inbox(self) -> str:
        """An inbox that `log` holds too; whose it may be the controller checks."""
        return f"_INBOX.event.{next(_numbers)}"

    async def wait(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            await self._changes.wait_until(condition)

    def on(self, subject: str) -> list[bytes]:
        return self._by_subject[subject]

    def events(self, owner: ControllerId = OWNER) -> list[RequestEvent]:
        bodies, payloads = self._bodies[owner], self.on(_request_events(owner))
        bodies += [decode(RequestEvents, payload) for payload in payloads[len(bodies) :]]
        return [event for body in bodies for event in body.events]

    async def _record(self, message: IncomingMessage) -> None:
        self.log.append(message)
        subject = message.subject
        if subject.startswith("mlx.event.request."):  # whichever worker it is of
            subject = subject.rpartition(".")[0]
        self._by_subject[subject].append(message.payload)
        self._changes.notify()


class ClientStream(Heard):
    """What the client of one request got."""

    def __init__(self, wire: Wire, dispatch: Dispatch) -> None:
        self._wire = wire
        self._seen = 0
        self._messages: list[StreamMessage] = []
        self.dispatch = dispatch

    @property
    def messages(self) -> list[StreamMessage]:
        payloads = self._wire.on(self.dispatch.inboxes[0])
        new = [m for payload in payloads[self._seen :] for m in decode_stream(payload)]
        self._seen = len(payloads)
        self._messages += [m for m in new if m.request_id == self.dispatch.request_id]
        return self._messages

    async def until(self, condition: Callable[["ClientStream"], bool]) -> None:
        await self._wire.wait(lambda: condition(self))

    async def started(self) -> None:
        """Return once the first token is there."""
        await self.until(lambda stream: bool(stream.token_ids()))

    async def done(self) -> DoneMessage:
        """The good end; fails on a bad one."""
        await self.until(lambda stream: bool(stream.ends))
        end = self.ends[0]
        assert isinstance(end, DoneMessage), end
        return end

    async def failed(self) -> FailedMessage:
        await self.until(lambda stream: bool(stream.ends))
        end = self.ends[0]
        assert isinstance(end, FailedMessage), end
        return end

    def events(self, owner: ControllerId = OWNER) -> list[RequestEvent]:
        """What an owner was told of it, under whatever attempt."""
        mine = self.dispatch.request_id
        return [event for event in self._wire.events(owner) if event.request_id == mine]

    async def requeued(self) -> AttemptFailed:
        """What the owner is told of a request that another worker may serve; the client hears
        nothing of it."""

        def told() -> list[AttemptFailed]:
            return [event for event in self.events() if isinstance(event, AttemptFailed)]

        await self.until(lambda _: bool(told()))
        (failed,) = told()
        assert not failed.terminal_sent
        assert self.ends == []
        return failed


class RunningAgent:
    """An agent as its leader and clients see it.

    Attributes:
        term: in which it was claimed last, by `leader`.
    """

    def __init__(self, agent: WorkerAgent, wire: Wire, stop: StopSignal, life: asyncio.Task[bool]):
        self.agent = agent
        self.id = agent.id
        self.wire = wire
        self.stop = stop
        self.life = life
        self.term = 0
        self.leader = OWNER
        self._sent: list[Dispatch] = []

    def dispatch(self, *, model: ModelId = TINY, **fields: Any) -> Dispatch:
        """One dispatch; `fields` are those of `Dispatch`, `goes_on` is its `resume`, or else of the
        request."""
        own: dict[str, Any] = {
            "request_id": RequestId(f"request-{next(_numbers)}"),
            "inboxes": [self.wire.new_inbox()],
            "attempt": 0,
            "seed": 1,
            "elapsed_ms": 0.0,
        }
        own.update({name: fields.pop(name) for name in list(fields) if name in own})
        own["resume"] = fields.pop("goes_on", None)
        if "messages" not in fields:
            fields.setdefault("prompt", "Hello")
        body = {"max_tokens": 12, "temperature": 0, "logit_bias": ENDLESS, **fields}
        request = InferenceRequest.model_validate(body)
        skill = SkillName("chat")
        return Dispatch(client=CLIENT, skill=skill, model=model, request=request, **own)

    async def claim(self, leader: ControllerId = OWNER, *, term: int | None = None) -> ControlReply:
        """Lead from now on: in the next term, unless told otherwise."""
        order = ClaimWorker(
            term=self.term + 1 if term is None else term,
            controller=leader,
            boot_id=BootId(f"boot-of-{leader}"),
        )
        reply = await self.control("claim", order)
        if reply.claimed is not None:
            self.term, self.leader = reply.claimed.term, leader
        return reply

    async def send(self, *dispatches: Dispatch) -> DispatchReply:
        """Dispatch as its leader does."""
        return await self.send_batch(
            DispatchBatch(owner=self.leader, term=self.term, dispatches=list(dispatches))
        )

    async def send_batch(self, batch: DispatchBatch) -> DispatchReply:
        self._sent += batch.dispatches
        subject = subjects.worker_infer(self.id)
        answer = await self.wire.bus.request(subject, encode(batch), timeout_s=LIMIT_S)
        return decode(DispatchReply, answer.payload)

    async def start(self, **fields: Any) -> ClientStream:
        """Dispatch one request, which must be taken."""
        dispatch = self.dispatch(**fields)
        reply = await self.send(dispatch)
        assert reply.results[0].refusal is None, reply
        return ClientStream(self.wire, dispatch)

    def stream(self, dispatch: Dispatch) -> ClientStream:
        return ClientStream(self.wire, dispatch)

    async def refusal_code(self, **fields: Any) -> str | None:
        (result,) = (await self.send(self.dispatch(**fields))).results
        return result.refusal.code if result.refusal else None

    async def control(self, verb: str, order: BaseModel | bytes) -> ControlReply:
        payload = order if isinstance(order, bytes) else encode(order)
        subject = subjects.worker_control(self.id, verb)
        answer = await self.wire.bus.request(subject, payload, timeout_s=LIMIT_S)
        return decode(ControlReply, answer.payload)

    async def cancel(self, stream: ClientStream, **fields: Any) -> ControlReply:
        order = CancelRequest(request_id=stream.dispatch.request_id, client=CLIENT, **fields)
        return await self.control("cancel", order)

    async def cancel_all(self, *streams: ClientStream) -> None:
        """Cancel one after another, each once the one before has ended."""
        for stream in streams:
            await self.cancel(stream)
            await stream.done()

    async def end_all(self) -> None:
        """Cancel whatever is still there of what was sent, and return once nothing is."""

        async def is_idle() -> bool:
            report = (await self.health()).worker
            return report.active_requests + report.queued_requests == 0

        sent, self._sent = self._sent, []
        if not await is_idle():
            for dispatch in reversed(sent):
                await self.cancel(self.stream(dispatch), silent=True)
            await wait_until(is_idle)

    async def health(self) -> WorkerHealth:
        subject = subjects.worker_health(self.id)
        answer = await self.wire.bus.request(subject, b"", timeout_s=LIMIT_S)
        return decode(WorkerHealth, answer.payload)

    async def settle(self) -> None:
        """Return once everything the agent has published so far is in the log."""
        await self.health()  # the answer follows what was published before it
        marker = self.wire.new_inbox()  # and this follows in the log
        await self.wire.bus.publish(marker, b"")
        await self.wire.wait(lambda: bool(self.wire.on(marker)))

    def reports(self) -> list[tuple[str, WorkerReport]]:
        """The type and state of every event so far."""
        events = [decode(WorkerEvent, p) for p in self.wire.on(subjects.worker_event(self.id))]
        return [(event.type, event.worker) for event in events]

    async def until_reported(self, condition: Callable[[WorkerReport], bool]) -> None:
        """Return once the last event shows such a state."""
        await self.wire.wait(lambda: bool(self.reports()) and condition(self.reports()[-1][1]))


@asynccontextmanager
async def running_agent(
    nats_url: str,
    models: Mapping[str, Path | dict[str, Any]],
    *,
    wait: str = "ready",
    claimed: bool = True,
    **settings: Any,
) -> AsyncIterator[RunningAgent]:
    """An agent that serves `models`, paths or entries of the settings, once its state is `wait`.

    It is claimed in term 1, unless it shall not be.
    `settings` are keys of the settings' section `worker`; `controller` is a section of its own.
    """
    worker = WorkerId(next(_names))
    controller = settings.pop("controller", {})
    engines = {"count": 1, "threads": 1, **settings.pop("engines", {})}
    tree = ClusterSettings.model_validate(
        {
            "nats": as_role("worker", worker, nats_url),
            "security": {"strict_inbox": is_secured(nats_url)},
            "skills": {"chat": list(models)},
            "models": {
                name: source if isinstance(source, dict) else {"path": str(source)}
                for name, source in models.items()
            },
            "controller": {"failover": {"heartbeat_interval_ms": 100}, **controller},
            "worker": {"kv_cache": {"disk_mb": 0}, "engines": engines, **settings},
        }
    )
    prefix = subjects.inbox_prefix("client", CLIENT)
    ours = await Bus.connect(as_tester(nats_url), name="by hand", inbox_prefix=prefix, wait_s=30)
    theirs = await connect_as("worker", worker, nats_url)
    wire = Wire(ours)
    await wire.listen()
    stop = StopSignal()
    agent = WorkerAgent(tree, theirs, worker, BusLogHandler("worker", worker))
    life = asyncio.create_task(agent.run(stop))
    running = RunningAgent(agent, wire, stop, life)
    try:
        await running.until_reported(lambda report: report.state == wait)
        if claimed:
            await running.claim()
        yield running
    finally:
        stop.request(immediate=True)
        try:
            async with asyncio.timeout(LIMIT_S):
                await life
        finally:
            left = _kill_engines(agent)
            await theirs.close()
            await ours.close()
    assert left == [], "engines outlived their agent"


def _kill_engines(agent: WorkerAgent) -> list[int]:
    """The engines that still ran; without them the event loop would wait for their end."""
    killed = []
    for engine in agent.report().engines:
        with suppress(psutil.NoSuchProcess):
            if engine.pid is not None and psutil.Process(engine.pid).ppid() == os.getpid():
                psutil.Process(engine.pid).kill()
                killed.append(engine.pid)
    return killed


def as_json(payload: bytes) -> Any:
    return orjson.loads(payload)
