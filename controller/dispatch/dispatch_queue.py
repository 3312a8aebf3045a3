"""Dispatches on their way to workers: held a moment so that those for one worker go in one message,
then sent, then answered one by one. Plain state; seconds of any monotonic clock.

A lane holds the dispatches of one model for one boot of a worker: they can run in one batch.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from controller.dispatch.dispatch_batching import PAUSE_S, DispatchBatchTarget, DispatchHoldTimer
from controller.requests.deadlines import DeadlineHeap
from controller.requests.instructions import SendDispatches
from controller.requests.metrics import DispatchCounts
from controller.requests.request import TrackedRequest
from controller.routing import TEMPORARY
from shared.ids import BootId, ControllerId, ModelId, WorkerId
from shared.messages.dispatch import DispatchRejection, DispatchReply, encode_batch
from shared.messages.worker_report import WorkerReport
from shared.settings.controller import DispatchSettings

_ENVELOPE_BYTES = 1024
"""Maximum size of a message without its dispatches."""


@dataclass(frozen=True, slots=True)
class DispatchOutcome:
    """The result of an offer: `refusal` is None if the worker accepted the request.

    Attributes:
        attempt: the attempt that was offered.
        boot_id: of the worker that answered.
        unknown: the worker did not answer, and may have the request.
    """

    request: TrackedRequest
    attempt: int
    refusal: DispatchRejection | None
    boot_id: BootId | None = None
    unknown: bool = False


@dataclass(slots=True, eq=False)
class _Worker:
    """One boot of a worker.

    Attributes:
        max_per_message: dispatches that it accepts in one message.
        sent: numbers of the messages that it has not answered.
        paused_until: until then only high priority is sent.
    """

    id: WorkerId
    boot_id: BootId
    max_per_message: int
    target: DispatchBatchTarget
    lanes: "dict[ModelId, _Lane]" = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    paused_until: float = float("-inf")


@dataclass(slots=True, eq=False)
class _Lane:
    worker: _Worker
    batching: DispatchHoldTimer
    held: "list[_Entry]" = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Entry:
    request: TrackedRequest
    attempt: int
    body: bytes
    held_at: float


@dataclass(slots=True, eq=False)
class _Sent:
    worker: _Worker
    entries: Sequence[_Entry]
    sent_at: float


class DispatchQueue:
    """
    Args:
        totals: counts the dispatches and messages that are sent.

    Attributes:
        max_bytes: of a message.
    """

    def __init__(
        self,
        controller: ControllerId,
        term: int,
        settings: DispatchSettings,
        max_bytes: int,
        totals: DispatchCounts,
    ) -> None:
        self._controller = controller
        self._term = term
        self._settings = settings
        self._workers: dict[tuple[WorkerId, BootId], _Worker] = {}
        self._held: dict[TrackedRequest, _Lane] = {}
        self._sent: dict[int, _Sent] = {}
        self._due: DeadlineHeap[_Lane | int] = DeadlineHeap()
        self.max_bytes = max_bytes
        self._totals = totals
        self._numbers = itertools.count(1)

    def configure(self, settings: DispatchSettings) -> None:
        """Apply new settings, from the next message on."""
        self._settings = settings

    @property
    def next_at(self) -> float:
        """When `pop_due` is due."""
        return self._due.next_at

    def __len__(self) -> int:
        """Number of offers that were not answered yet."""
        return len(self._held) + sum(len(sent.entries) for sent in self._sent.values())

    def add(
        self, report: WorkerReport, request: TrackedRequest, now: float
    ) -> Sequence[SendDispatches]:
        """Hold an offer until it is due. Return the messages to send now."""
        worker = self._worker(report)
        assert request.model is not None
        lane = self._lane(worker, request.model)
        lane.held.append(_Entry(request, request.attempt, request.dispatch_json(now), now))
        self._held[request] = lane
        lane.batching.added(request.level, now)
        due_at = lane.batching.due_at(worker.paused_until if request.level != "high" else 0.0)
        if due_at <= now:
            return self._send_held(lane, now)
        self._due.set(lane, due_at)
        return ()

    def withdraw(self, request: TrackedRequest) -> bool:
        """Remove an offer that is still held. Return False if it is not held any more."""
        lane = self._held.pop(request, None)
        if lane is None:
            return False
        lane.held = [entry for entry in lane.held if entry.request is not request]
        return True

    def pop_due(self, now: float) -> tuple[list[SendDispatches], list[DispatchOutcome]]:
        """Return the messages to send now, and the offers that were not answered in time."""
        messages: list[SendDispatches] = []
        unanswered: list[DispatchOutcome] = []
        for due in self._due.pop_due(now):
            if isinstance(due, _Lane):
                due_at = due.batching.due_at(due.worker.paused_until)
                if due_at > now and due.held:
                    self._due.set(due, due_at)
                else:
                    messages += self._send_held(due, now)
            else:
                worker = self._sent[due].worker
                message = f"worker {worker.id} does not answer"
                refusal = DispatchRejection(code="worker_lost", message=message)
                unanswered += self._fail_unanswered(due, refusal)
        return messages, unanswered

    def asked(self, number: int) -> tuple[WorkerId, BootId] | None:
        """Return who was sent a message and has not answered it yet."""
        sent = self._sent.get(number)
        return (sent.worker.id, sent.worker.boot_id) if sent is not None else None

    def answered(
        self, number: int, reply: DispatchReply | None, now: float
    ) -> list[DispatchOutcome]:
        """Return the outcome of each offer of a message; nothing if the answer is too late.

        Args:
            reply: None if nobody subscribes to the subject of the worker.
        """
        sent = self._sent.get(number)
        if sent is None:
            return []
        worker = sent.worker
        if reply is None:
            message = f"worker {worker.id} does not listen"
            return self._settle(number, DispatchRejection(code="worker_lost", message=message))
        if reply.refusal is not None:
            return self._settle(number, reply.refusal)
        if len(reply.results) != len(sent.entries):
            counts = f"{len(reply.results)} results for {len(sent.entries)} dispatches"
            message = f"worker {worker.id} answered {counts}"
            return self._fail_unanswered(
                number, DispatchRejection(code="internal_error", message=message)
            )
        worker.target.answered(sent.sent_at - sent.entries[0].held_at, now - sent.sent_at)
        self._close(number)
        outcomes = []
        for entry, result in zip(sent.entries, reply.results, strict=True):
            refusal = result.refusal
            if refusal is not None and refusal.code in TEMPORARY:
                worker.paused_until = now + PAUSE_S
            outcomes.append(DispatchOutcome(entry.request, entry.attempt, refusal, reply.boot_id))
        return outcomes

    def worker_gone(self, id: WorkerId, boot_id: BootId) -> list[DispatchOutcome]:
        """Return the outcome of each offer to a boot that is gone."""
        worker = self._workers.pop((id, boot_id), None)
        if worker is None:
            return []
        refusal = DispatchRejection(code="worker_lost", message=f"worker {id} is gone")
        outcomes = [
            each for number in list(worker.sent) for each in self._fail_unanswered(number, refusal)
        ]
        for lane in worker.lanes.values():
            outcomes += [
                DispatchOutcome(entry.request, entry.attempt, refusal)
                for entry in self._remove_held(lane)
            ]
        return outcomes

    def _worker(self, report: WorkerReport) -> _Worker:
        worker = self._workers.get((report.id, report.boot_id))
        if worker is None:
            limit = max(1, min(report.dispatches_per_message, self._settings.max_batch))
            worker = _Worker(report.id, report.boot_id, limit, DispatchBatchTarget(limit))
            self._workers[report.id, report.boot_id] = worker
        return worker

    def _lane(self, worker: _Worker, model: ModelId) -> _Lane:
        lane = worker.lanes.get(model)
        if lane is None:
            lane = _Lane(worker, DispatchHoldTimer(self._settings, worker.target))
            worker.lanes[model] = lane
        return lane

    def _remove_held(self, lane: _Lane) -> "list[_Entry]":
        held, lane.held = lane.held, []
        lane.batching.sent()
        self._due.drop(lane)
        for entry in held:
            self._held.pop(entry.request, None)
        return held

    def _send_held(self, lane: _Lane, now: float) -> list[SendDispatches]:
        limit = self.max_bytes - _ENVELOPE_BYTES
        messages: list[SendDispatches] = []
        batch: list[_Entry] = []
        size = 0
        for entry in self._remove_held(lane):
            if batch and (
                len(batch) == lane.worker.max_per_message or size + len(entry.body) > limit
            ):
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

    def _fail_unanswered(self, number: int, refusal: DispatchRejection) -> list[DispatchOutcome]:
        return self._settle(number, refusal, unknown=True)

    def _settle(
        self, number: int, refusal: DispatchRejection, *, unknown: bool = False
    ) -> list[DispatchOutcome]:
        return [
            DispatchOutcome(entry.request, entry.attempt, refusal, unknown=unknown)
            for entry in self._close(number)
        ]

    def _close(self, number: int) -> Sequence[_Entry]:
        """Forget a message and return its offers."""
        sent = self._sent.pop(number)
        sent.worker.sent.discard(number)
        self._due.drop(number)
        return sent.entries
