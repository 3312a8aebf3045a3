"""The engine's loop: take orders, one step, send the step's frame."""

import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx

from shared.ids import ModelId
from shared.settings.tree import AdaptiveBatching
from worker.engine.adaptive_batch_size import AdaptiveBatchSize
from worker.engine.batch import Batch
from worker.engine.decoding import DecodeGroup, Drawn
from worker.engine.device import give_back_memory, on_gpu
from worker.engine.ledger import KVLedger
from worker.engine.model import LoadedModel
from worker.engine.prefill import Progress
from worker.engine.preparation import NotPrepared, Preparation, Prepared, refused
from worker.engine.prompt import PreparedSequence
from worker.engine.sequence import Sequence
from worker.engine.served_models import ServedModels
from worker.engine.turns import Turns
from worker.link.messages import (
    Cancel,
    EngineMeasured,
    Fact,
    LimitMemory,
    LoadModel,
    Order,
    Output,
    PrefillAdvanced,
    SequencePreempted,
    SequenceRefused,
    SequenceStarted,
    StepCompleted,
    Stop,
    Submit,
    UnloadModel,
)

_MEASURE_INTERVAL_S = 1.0
_LEAST_SHARE = 0.8
"""Prefill gets so much of the stall that is allowed, however long decoding itself takes: else
prompts would starve where steps are slow."""

_LEAST_LOADING_S = 0.05

Send = Callable[[Fact], None]


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that the device was asked for."""

    batch: Batch
    group: DecodeGroup
    drawn: Drawn
    began_at: float


class Engine:
    """Generates for all loaded models, a step of one group of rows after the other.

    `give` may be called by any thread; everything else runs on the thread that calls `run`,
    the only one that touches MLX.
    """

    def __init__(
        self,
        send: Send,
        wait_for_room: Callable[[], None],
        *,
        max_batch_size: int,
        max_chunk_tokens: int,
        max_decode_stall_s: float,
        kv_budget_bytes: int | None = None,
        engines: int = 1,
        adaptive: AdaptiveBatching | None = None,
        min_batch_size: int = 1,
        overlaps: bool | None = None,
    ) -> None:
        """
        Args:
            kv_budget_bytes: for all KV caches; by default a share of what is free.
            engines: among how many engines of this machine that is shared.
            adaptive: how the batch size of each model follows its latency, between
                `min_batch_size` and `max_batch_size`; None keeps it.
            overlaps: ask the device for the next step before this one's tokens are read; by
                default on a GPU. On a CPU to ask is to wait, and the tokens come later.
        """
        self._send = send
        self._wait_for_room = wait_for_room
        self._max_batch_size = max_batch_size
        self._adaptive = adaptive
        self._min_batch_size = min_batch_size
        self._max_chunk_tokens = max_chunk_tokens
        self._max_decode_stall_s = max_decode_stall_s
        self._inbox: queue.SimpleQueue[Order | Prepared] = queue.SimpleQueue()
        self._models = ServedModels(
            self._new_batch, kv_budget_bytes=kv_budget_bytes, engines=engines
        )
        self._preparation = Preparation(self._models.find, self._inbox.put)
        self._sequences: dict[int, Sequence] = {}
        self._turns = Turns(longest_debt_s=max_decode_stall_s)
        self._overlaps = on_gpu() if overlaps is None else overlaps
        self._ahead: _Step | None = None
        self._free_at = 0.0  # when the device had nothing more to do, as far as is known
        self._measured_at = 0.0
        self._turned_at: float | None = None  # None while there is nothing to do

    def _new_batch(self, model: LoadedModel, ledger: KVLedger) -> Batch:
        adaptive = None
        if self._adaptive is not None:
            adaptive = AdaptiveBatchSize(self._adaptive, self._min_batch_size, self._max_batch_size)
        return Batch(
            model,
            ledger,
            max_size=self._max_batch_size,
            max_chunk_tokens=self._max_chunk_tokens,
            adaptive=adaptive,
        )

    @property
    def stuck_s(self) -> float:
        """How long the loop has been in its present step; any thread may ask."""
        turned_at = self._turned_at
        return time.monotonic() - turned_at if turned_at is not None else 0.0

    def give(self, order: Order) -> None:
        """Hand the engine an order; prompts are tokenised on a thread of their own first."""
        if isinstance(order, Submit):
            self._preparation.give(order)
        else:
            self._inbox.put(order)

    def run(self) -> None:
        """Serve until a `Stop` comes. An exception leaves every sequence unfinished: the
        caller must end the process, and the agent reports and restarts."""
        self._preparation.start()
        running = True
        while running:
            running = self._take_orders()
            if self._models.is_loading:
                self._load()
            if self._sequences:
                self._turned_at = None
                self._wait_for_room()
                self._turned_at = time.monotonic()
                self._step()
            self._measure()
            self._turned_at = None

    def _take_orders(self) -> bool:
        """Carry out what has arrived; wait for something only while there is nothing to do."""
        for item in self._arrived():
            self._turned_at = time.monotonic()
            match item:
                case PreparedSequence():
                    self._start(item)
                case SequenceRefused():
                    self._preparation.leave(item.sequence)
                    self._send(item)
                case NotPrepared():
                    self._preparation.leave(item.order.sequence)
                    self._send(StepCompleted([_cancelled(item.order)]))
                case Cancel():
                    self._cancel(item.sequence)
                case LoadModel():
                    self._models.load(item)
                case UnloadModel():
                    self._unload(item.model)
                case LimitMemory():
                    self._limit_memory(item)
                case Stop():
                    return False
                case Submit():  # `give` sends these to their own thread
                    raise AssertionError("a prompt was not prepared")
        return True

    def _arrived(self) -> Iterator[Order | Prepared]:
        busy = self._sequences or self._models.is_loading
        try:
            yield self._inbox.get(timeout=0 if busy else _MEASURE_INTERVAL_S)
            while True:
                yield self._inbox.get_nowait()
        except queue.Empty:
            return

    def _start(self, prepared: PreparedSequence) -> None:
        order = prepared.order
        cancelled = self._preparation.leave(order.sequence)
        model = self._models.find(order.model)
        if model is None:  # unloaded while its prompt was prepared
            self._send(refused(order, "model_unavailable", f"{order.model} was unloaded"))
            return
        sequence = Sequence(prepared, model)
        if cancelled:
            self._send(StepCompleted([sequence.cancel()]))
            return
        self._send(SequenceStarted(order.sequence, len(prepared.prompt_ids), 0))
        if (end := sequence.ended_before()) is not None:
            self._send(StepCompleted([end]))
            return
        self._sequences[sequence.id] = sequence
        self._batches[order.model].add(prepared)

    @property
    def _batches(self) -> dict[ModelId, Batch]:
        return self._models.batches

    def _step(self) -> None:
        """A step of the group whose turn it is, and some prefill if that may be now. While a GPU
        computes, the tokens it has brought before are sent."""
        steps = [self._ahead] if self._ahead else []
        self._ahead = None
        if (step := self._draw()) is not None:
            steps.append(step)
        prefill_next = self._may_prefill()
        if self._overlaps and step is not None and not step.drawn.has_fresh and not prefill_next:
            self._ahead = steps.pop()  # read while the next step is computed
        self._read(steps)
        if prefill_next:
            self._prefill()
        for batch in self._batches.values():
            batch.retire()
        if not self._sequences:
            self._ahead = None

    def _draw(self) -> "_Step | None":
        """Ask the device for the next tokens of one group, if there is any."""
        while batches := [batch for batch in self._batches.values() if batch.groups]:
            batch = self._turns.next(batches)
            group = batch.turns.next(batch.groups)
            has_rows = batch.make_room(group)
            self._report_preempted()
            if has_rows:
                began_at = time.perf_counter()  # on a CPU most of the step is done when it is asked
                return _Step(batch, group, group.draw(), began_at)
        return None

    def _read(self, steps: list["_Step"]) -> None:
        """Wait for the tokens of steps and send them."""
        while steps:
            step = steps.pop(0)
            tokens = step.drawn.read()
            now = time.perf_counter()
            seconds = now - max(step.began_at, self._free_at)
            self._free_at = now
            step.batch.took(step.group, seconds)
            self._turns.took(step.batch, step.group.step_s)
            outputs = [
                self._sequences[token.sequence].advance(token)
                for token in tokens
                if token.sequence in self._sequences  # else cancelled, its last one on its way
            ]
            if outputs:
                self._send(StepCompleted(outputs))
            for output in outputs:
                if output.finish_reason is not None:
                    sequence = self._sequences.pop(output.sequence)
                    self._batches[sequence.model].remove(sequence.id)

    def _groups(self) -> list[DecodeGroup]:
        return [group for batch in self._batches.values() for group in batch.groups]

    # Prefill.

    def _may_prefill(self) -> bool:
        """Once every group has stepped since the last time: so none waits for two of them."""
        stepped = all(group.stepped for group in self._groups())
        return stepped and self._next_to_prefill() is not None

    def _next_to_prefill(self) -> Batch | None:
        """Of the models with prompts the one that had the least of the device."""
        batches = [batch for batch in self._batches.values() if batch.next_due is not None]
        return self._turns.next(batches) if batches else None

    def _prefill(self) -> None:
        """Prefill for as long as those who decode may wait."""
        groups = self._groups()
        round_s = sum(group.step_s for group in groups)
        stall_s = self._max_decode_stall_s
        allowed_s = max(stall_s - round_s, _LEAST_SHARE * stall_s)
        until = time.perf_counter() + allowed_s
        left_s = allowed_s
        batch = self._next_to_prefill()
        while batch is not None:
            self._report(batch.prefill(left_s))
            now = time.perf_counter()
            self._turns.took(batch, until - left_s - now)
            self._free_at, left_s = now, until - now
            batch = self._next_to_prefill()
            if not groups and self._groups():
                break  # whoever has waited alone gets its first token before the next prompt
            if batch is not None and not batch.prefill_pays(left_s):
                break
        for group in self._groups():
            group.stepped = False

    def _report(self, progress: list[Progress]) -> None:
        for prefill in progress:
            if prefill.done < prefill.total - 1:
                self._send(PrefillAdvanced(prefill.sequence, prefill.done, prefill.total))

    def _report_preempted(self) -> None:
        for batch in self._batches.values():
            for sequence in batch.preempted:
                self._send(SequencePreempted(sequence))
            batch.preempted.clear()

    # Orders.

    def _cancel(self, sequence_id: int) -> None:
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is None:
            self._preparation.cancel(sequence_id)
            return
        self._batches[sequence.model].remove(sequence_id)
        self._batches[sequence.model].retire()
        self._send(StepCompleted([sequence.cancel()]))

    def _load(self) -> None:
        """Load for a while: while others decode, for as long as a step of theirs takes."""
        self._turned_at = None  # a disk may take as long as it likes
        steps_s = sum(group.step_s for group in self._groups())
        for fact in self._models.load_some(max(_LEAST_LOADING_S, steps_s)):
            self._send(fact)
        self._free_at = time.perf_counter()

    def _unload(self, model_id: ModelId) -> None:
        for sequence in [s for s in self._sequences.values() if s.model == model_id]:
            self._cancel(sequence.id)
        if self._ahead is not None and self._ahead.batch is self._batches.get(model_id):
            self._ahead = None
        self._models.unload(model_id)

    def _limit_memory(self, order: LimitMemory) -> None:
        self._models.limit_kv(order.kv_bytes)
        self._report_preempted()
        if order.give_back:
            give_back_memory()
        self._measured_at = 0.0

    def _measure(self) -> None:
        now = time.monotonic()
        if now - self._measured_at >= _MEASURE_INTERVAL_S:
            self._measured_at = now
            ledger = self._models.ledger
            self._send(
                EngineMeasured(
                    len(self._sequences),
                    mx.get_active_memory(),
                    mx.get_cache_memory(),
                    ledger.held_bytes,
                    ledger.budget_bytes,
                    ledger.preemptions,
                    round(max((group.step_s for group in self._groups()), default=0) * 1000, 2),
                    [batch.measured(model, now) for model, batch in self._batches.items()],
                )
            )


def _cancelled(order: Submit) -> Output:
    return Output(order.sequence, len(order.resumed_ids), [], "", "cancelled")
