"""Dispatches on their way to workers: held a moment so that those for one worker go in one message,
then sent, then answered one by one. Plain state; seconds of any monotonic clock.

A lane has the dispatches for one boot of a worker that a model can serve in one batch.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from controller.dispatch.dispatch_batching import PAUSE_S, BatchTarget, DispatchBatching
from controller.requests.deadlines import Deadlines
from controller.requests.instructions import SendDispatches
from controller.requests.metrics import Totals
from controller.requests.request import ClientRequest
from controller.routing import TEMPORARY
from shared.ids import BootId, ControllerId, ModelId, WorkerId
from shared.messages.dispatch import DispatchReply, Refusal, encode_batch
from shared.messages.worker_report import WorkerReport
from shared.settings.controller import DispatchSettings

_ENVELOPE_BYTES = 1024
"""What a message has beside its dispatches, at most."""


@dataclass(frozen=True, slots=True)
class DispatchOutcome:
    """What became of an offer: `refusal` is None where the worker has it.

    Attributes:
        attempt: that was offered.
        boot_id: that answered.
        unknown: the worker did not answer; it may have it.
    """

    request: ClientRequest
    attempt: int
    refusal: Refusal | None
    boot_id: BootId | None = None
    unknown: bool = False


@dataclass(slots=True, eq=False)
class _Worker:
    """One boot of a worker.

    Attributes:
        most: dispatches that it takes in a message.
        sent: numbers of messages that it has not answered.
    """

    id: WorkerId
    boot_id: BootId
    most: int
    target: BatchTarget
    lanes: "dict[ModelId, _WorkerQueue]" = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    paused_until: float = float("-inf")


@dataclass(slots=True, eq=False)
class _WorkerQueue:
    worker: _Worker
    holding: DispatchBatching
    held: "list[_Entry]" = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Entry:
    request: ClientRequest
    attempt: int
    body: bytes
    held_at: float


@dataclass(slots=True, eq=False)
class _Sent:
    worker: _Worker
    entries: Sequence[_Entry]
    sent_at: float


class DispatchQueue:
    """Args:
    totals: counts what is sent.

    Attributes:
        max_bytes: of a message.
    """

    def __init__(
        self,
        controller: ControllerId,
        term: int,
        settings: DispatchSettings,
        max_bytes: int,
        totals: Totals,
    ) -> None:
        self._controller = controller
        self._term = term
        self._settings = settings
        self._workers: dict[tuple[WorkerId, BootId], _Worker] = {}
        self._held: dict[ClientRequest, _WorkerQueue] = {}
        self._sent: dict[int, _Sent] = {}
        self._due: Deadlines[_WorkerQueue | int] = Deadlines()
        self.max_bytes = max_bytes
        self._totals = totals
        self._numbers = itertools.count(1)

    def configure(self, settings: DispatchSettings) -> None:
        """Go by other settings, from the next message on."""
        self._settings = settings

    @property
    def next_at(self) -> float:
        """When `pop_due` has something to do."""
        return self._due.next_at

    def __len__(self) -> int:
        """Offers that were not answered yet."""
        return len(self._held) + sum(len(sent.entries) for sent in self._sent.values())

    def add(
        self, report: WorkerReport, request: ClientRequest, now: float
    ) -> Sequence[SendDispatches]:
        """Hold an offer until it is due; returns what is to be sent now."""
        worker = self._worker(report)
        assert request.model is not None
        lane = self._lane(worker, request.model)
        lane.held.append(_Entry(request, request.attempt, request.dispatch_json(now), now))
        self._held[request] = lane
        lane.holding.came(request.level, now)
        due_at = lane.holding.due_at(worker.paused_until if request.level != "high" else 0.0)
        if due_at <= now:
            return self._send_held(lane, now)
        self._due.set(lane, due_at)
        return ()

    def withdraw(self, request: ClientRequest) -> bool:
        """Whether an offer was held still: then it is not sent."""
        lane = self._held.pop(request, None)
        if lane is None:
            return False
        lane.held = [entry for entry in lane.held if entry.request is not request]
        return True

    def pop_due(self, now: float) -> tuple[list[SendDispatches], list[DispatchOutcome]]:
        """What is to be sent now, and of which offers nobody knows whether they arrived."""
        messages: list[SendDispatches] = []
        lost: list[DispatchOutcome] = []
        for due in self._due.pop_due(now):
            if isinstance(due, _WorkerQueue):
                due_at = due.holding.due_at(due.worker.paused_until)
                if due_at > now and due.held:
                    self._due.set(due, due_at)
                else:
                    messages += self._send_held(due, now)
            else:
                worker = self._sent[due].worker
                message = f"worker {worker.id} does not answer"
                lost += self._lose(due, Refusal(code="worker_lost", message=message))
        return messages, lost

    def answered(
        self, number: int, reply: DispatchReply | None, now: float
    ) -> list[DispatchOutcome]:
        """What a worker says to each offer of a message; nothing where that is too late.

        Args:
            reply: None where nobody listens there.
        """
        sent = self._sent.get(number)
        if sent is None:
            return []
        worker = sent.worker
        if reply is None:
            gone = f"worker {worker.id} is not there"
            return self._settle(number, Refusal(code="worker_lost", message=gone))
        if len(reply.results) != len(sent.entries):
            wrong = f"{len(reply.results)} results instead of {len(sent.entries)}"
            message = f"worker {worker.id} answered {wrong}"
            return self._lose(number, Refusal(code="internal_error", message=message))
        worker.target.answered(sent.sent_at - sent.entries[0].held_at, now - sent.sent_at)
        self._close(number)
        answers = []
        for entry, result in zip(sent.entries, reply.results, strict=True):
            refusal = result.refusal
            if refusal is not None and refusal.code in TEMPORARY:
                worker.paused_until = now + PAUSE_S
            answers.append(DispatchOutcome(entry.request, entry.attempt, refusal, reply.boot_id))
        return answers

    def worker_gone(self, id: WorkerId, boot_id: BootId) -> list[DispatchOutcome]:
        """Wait no longer for answers of this boot."""
        worker = self._workers.pop((id, boot_id), None)
        if worker is None:
            return []
        refusal = Refusal(code="worker_lost", message=f"worker {id} is gone")
        answers = [each for number in list(worker.sent) for each in self._lose(number, refusal)]
        for lane in worker.lanes.values():
            answers += [
                DispatchOutcome(entry.request, entry.attempt, refusal)
                for entry in self._taken_out(lane)
            ]
        return answers

    def _worker(self, report: WorkerReport) -> _Worker:
        worker = self._workers.get((report.id, report.boot_id))
        if worker is None:
            most = max(1, min(report.dispatches_per_message, self._settings.max_batch))
            worker = _Worker(report.id, report.boot_id, most, BatchTarget(most))
            self._workers[report.id, report.boot_id] = worker
        return worker

    def _lane(self, worker: _Worker, model: ModelId) -> _WorkerQueue:
        lane = worker.lanes.get(model)
        if lane is None:
            lane = _WorkerQueue(worker, DispatchBatching(self._settings, worker.target))
            worker.lanes[model] = lane
        return lane

    def _taken_out(self, lane: _WorkerQueue) -> "list[_Entry]":
        held, lane.held = lane.held, []
        lane.holding.went()
        self._due.drop(lane)
        for entry in held:
            self._held.pop(entry.request, None)
        return held

    def _send_held(self, lane: _WorkerQueue, now: float) -> list[SendDispatches]:
        limit = self.max_bytes - _ENVELOPE_BYTES
        messages: list[SendDispatches] = []
        batch: list[_Entry] = []
        size = 0
        for entry in self._taken_out(lane):
            if batch and (len(batch) == lane.worker.most or size + len(entry.body) > limit):
                messages.append(self._send(lane.worker, batch, now))
                batch, size = [], 0
            batch.append(entry)
            size += len(entry.body) + 1
        if batch:
            messages.append(self._send(lane.worker, batch, now))
        return messages

    def _send(self, worker: _Worker, entries: Sequence[_Entry], now: float) -> SendDispatches:
        self._totals.messages += 1
        self._totals.dispatches += len(entries)
        number = next(self._numbers)
        self._sent[number] = _Sent(worker, entries, now)
        worker.sent.add(number)
        self._due.set(number, now + self._settings.ack_timeout_ms / 1000)
        payload = encode_batch(self._controller, self._term, [entry.body for entry in entries])
        return SendDispatches(worker.id, number, payload)

    def _lose(self, number: int, refusal: Refusal) -> list[DispatchOutcome]:
        return self._settle(number, refusal, unknown=True)

    def _settle(
        self, number: int, refusal: Refusal, *, unknown: bool = False
    ) -> list[DispatchOutcome]:
        return [
            DispatchOutcome(entry.request, entry.attempt, refusal, unknown=unknown)
            for entry in self._close(number)
        ]

    def _close(self, number: int) -> Sequence[_Entry]:
        """Nothing more is expected for a message."""
        sent = self._sent.pop(number)
        sent.worker.sent.discard(number)
        self._due.drop(number)
        return sent.entries
