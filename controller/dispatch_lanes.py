"""Dispatches on their way to workers: held a moment so that those for one worker go in one message,
then sent, then answered one by one.

A lane has the dispatches for one boot of a worker that a model can serve in one batch.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from controller.dispatch_holding import PAUSE_S, BatchTarget, Holding
from controller.owned_request import RequestKey
from controller.routing import PASSING
from shared import subjects
from shared.bus import Bus, Message
from shared.errors import BusError, DecodeError, RequestTimedOut
from shared.ids import BootId, ControllerId, ModelId, WorkerId
from shared.messages.codec import decode
from shared.messages.dispatch import Dispatch, DispatchReply, Refusal, dispatch_json, encode_batch
from shared.messages.events import WorkerReport
from shared.messages.request import Priority
from shared.settings.tree import DispatchSettings
from shared.tasks import Tasks

_ENVELOPE_BYTES = 1024
"""What a message has beside its dispatches, at most."""


@dataclass(frozen=True, slots=True)
class Ack:
    """A worker took the request.

    Attributes:
        attempt: the one that runs: higher than ours where the worker knew the request before.
        boot_id: another than we asked where the worker started again and has not told us yet.
    """

    attempt: int
    boot_id: BootId


Answer = Ack | Refusal | None
"""None where the dispatch was withdrawn before it was sent."""


@dataclass(slots=True, eq=False)
class _Entry:
    key: RequestKey
    body: bytes
    came_at: float
    answer: asyncio.Future[Answer]

    def settle(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def lose(self, error: RequestTimedOut) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(slots=True, eq=False)
class _Worker:
    """One boot of a worker.

    Attributes:
        most: dispatches that it takes in a message.
        sent: messages that it has not answered, by number.
    """

    id: WorkerId
    most: int
    target: BatchTarget
    lanes: "dict[ModelId, _Lane]" = field(default_factory=dict)
    sent: "dict[int, _Sent]" = field(default_factory=dict)
    paused_until: float = float("-inf")


@dataclass(slots=True, eq=False)
class _Lane:
    worker: _Worker
    holding: Holding
    held: list[_Entry] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _Sent:
    worker: _Worker
    entries: Sequence[_Entry]
    sent_at: float
    timer: asyncio.TimerHandle


class DispatchLanes:
    """Sends dispatches and hands out the answers.

    Attributes:
        messages, dispatches: counts of what was sent.
    """

    def __init__(self, controller: ControllerId, settings: DispatchSettings, bus: Bus) -> None:
        self._controller = controller
        self._settings = settings
        self._bus = bus
        self._inbox = bus.new_inbox()
        self._workers: dict[tuple[WorkerId, BootId], _Worker] = {}
        self._held: dict[RequestKey, tuple[_Lane, _Entry]] = {}
        self._sent: dict[int, _Sent] = {}
        self._tasks = Tasks()
        self.messages = self.dispatches = 0

    def configure(self, settings: DispatchSettings) -> None:
        """Go by other settings, from the next message on."""
        self._settings = settings

    async def open(self) -> None:
        await self._bus.subscribe(f"{self._inbox}.*", self._on_reply)

    async def ask(
        self,
        report: WorkerReport,
        dispatch: Dispatch,
        body: bytes | None,
        *,
        level: Priority,
    ) -> Answer:
        """Send a dispatch, soon, and return what the worker says.

        Args:
            body: the request as its client wrote it, where that is at hand.

        Raises:
            RequestTimedOut: it says nothing in time, or is gone; it may have the request.
        """
        now = time.monotonic()
        worker = self._worker(report)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        key = dispatch.client, dispatch.request_id
        entry = _Entry(key, dispatch_json(dispatch, body), now, answer)
        lane = self._lane(worker, dispatch.model)
        lane.holding.came(level, now)
        lane.held.append(entry)
        self._held[key] = lane, entry
        paused_until = worker.paused_until if level != "high" else 0.0
        due_s = lane.holding.due_at(paused_until) - now
        if due_s <= 0:
            await self._send_held(lane)
        elif lane.timer is None:
            lane.timer = asyncio.get_running_loop().call_later(due_s, self._on_due, lane)
        return await answer

    def withdraw(self, key: RequestKey) -> bool:
        """Whether a dispatch was held still: then it is not sent."""
        lane, entry = self._held.pop(key, (None, None))
        if lane is None or entry is None:
            return False
        lane.held.remove(entry)
        entry.settle(None)
        return True

    def on_worker_gone(self, id: WorkerId, boot_id: BootId) -> None:
        """Wait no longer for answers of this boot."""
        worker = self._workers.pop((id, boot_id), None)
        if worker is None:
            return
        for number in list(worker.sent):
            self._lose(number, RequestTimedOut(f"worker {worker.id} is gone"))
        for lane in worker.lanes.values():
            for entry in self._taken_out(lane):
                message = f"worker {worker.id} is not there"
                entry.settle(Refusal(code="worker_lost", message=message))

    def _worker(self, report: WorkerReport) -> _Worker:
        worker = self._workers.get((report.id, report.boot_id))
        if worker is None:
            most = max(1, min(report.dispatches_per_message, self._settings.max_batch))
            worker = _Worker(report.id, most, BatchTarget(most))
            self._workers[report.id, report.boot_id] = worker
        return worker

    def _lane(self, worker: _Worker, model: ModelId) -> _Lane:
        lane = worker.lanes.get(model)
        if lane is None:
            lane = _Lane(worker, Holding(self._settings, worker.target))
            worker.lanes[model] = lane
        return lane

    def _on_due(self, lane: _Lane) -> None:
        lane.timer = None
        due_s = lane.holding.due_at(lane.worker.paused_until) - time.monotonic()
        if due_s > 0 and lane.held:
            lane.timer = asyncio.get_running_loop().call_later(due_s, self._on_due, lane)
            return
        self._tasks.start(self._send_held(lane))

    def _taken_out(self, lane: _Lane) -> list[_Entry]:
        held, lane.held = lane.held, []
        lane.holding.went()
        for entry in held:
            self._held.pop(entry.key, None)
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        return held

    async def _send_held(self, lane: _Lane) -> None:
        limit = self._bus.max_payload - _ENVELOPE_BYTES
        batch: list[_Entry] = []
        size = 0
        for entry in self._taken_out(lane):
            if batch and (len(batch) == lane.worker.most or size + len(entry.body) > limit):
                await self._send(lane.worker, batch)
                batch, size = [], 0
            batch.append(entry)
            size += len(entry.body) + 1
        if batch:
            await self._send(lane.worker, batch)

    async def _send(self, worker: _Worker, entries: Sequence[_Entry]) -> None:
        self.messages += 1
        self.dispatches += len(entries)
        number = self.messages
        timeout_s = self._settings.ack_timeout_ms / 1000
        timer = asyncio.get_running_loop().call_later(timeout_s, self._on_silence, number)
        sent = _Sent(worker, entries, time.monotonic(), timer)
        self._sent[number] = worker.sent[number] = sent
        payload = encode_batch(self._controller, [entry.body for entry in entries])
        try:
            subject = subjects.worker_infer(worker.id)
            await self._bus.publish(subject, payload, reply=f"{self._inbox}.{number}")
        except BusError as error:
            self._settle_all(number, Refusal(code="internal_error", message=error.message))

    async def _on_reply(self, message: Message) -> None:
        number = int(message.subject.rpartition(".")[2])
        sent = self._sent.get(number)
        if sent is None:
            return  # too late
        worker = sent.worker
        if message.no_responders:
            gone = f"worker {worker.id} is not there"
            self._settle_all(number, Refusal(code="worker_lost", message=gone))
            return
        try:
            reply = decode(DispatchReply, message.payload)
        except DecodeError as error:
            self._settle_all(number, Refusal(code="internal_error", message=error.message))
            return
        results = reply.results
        if len(results) != len(sent.entries):
            wrong = f"{len(results)} results instead of {len(sent.entries)}"
            refusal = Refusal(code="internal_error", message=f"worker {worker.id} answered {wrong}")
            self._settle_all(number, refusal)
            return
        now = time.monotonic()
        worker.target.answered(sent.sent_at - sent.entries[0].came_at, now - sent.sent_at)
        self._close(number)
        for entry, result in zip(sent.entries, results, strict=True):
            if result.refusal is not None and result.refusal.code in PASSING:
                worker.paused_until = now + PAUSE_S
            entry.settle(result.refusal or Ack(result.attempt, reply.boot_id))

    def _on_silence(self, number: int) -> None:
        worker = self._sent[number].worker
        self._lose(number, RequestTimedOut(f"worker {worker.id} does not answer"))

    def _lose(self, number: int, error: RequestTimedOut) -> None:
        for entry in self._close(number):
            entry.lose(error)

    def _settle_all(self, number: int, refusal: Refusal) -> None:
        for entry in self._close(number):
            entry.settle(refusal)

    def _close(self, number: int) -> Sequence[_Entry]:
        """Nothing more is expected for a message."""
        sent = self._sent.pop(number)
        del sent.worker.sent[number]
        sent.timer.cancel()
        return sent.entries
