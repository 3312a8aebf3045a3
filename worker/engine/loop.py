"""The engine's loop: handle orders, load a model for a while, run one step."""

import contextlib
import math
import queue
import time
from collections.abc import Callable, Iterator

import mlx.core as mx

from shared.ids import ModelId
from shared.settings.worker import AdaptiveBatchingSettings
from worker.engine.adaptive_batch_size import AdaptiveBatchSize
from worker.engine.batch import ModelBatch
from worker.engine.blas import use_threads
from worker.engine.device import on_gpu, release_memory
from worker.engine.engine_models import EngineModels
from worker.engine.kv_block_store import KV_MEMORY_DISABLED, KVBlockStore, PrefixCacheConfig
from worker.engine.memory_accounting import KVAccounting
from worker.engine.model import LoadedModel
from worker.engine.prefetch import PrefixPrefetcher
from worker.engine.prefix_cache import PrefixCache
from worker.engine.preparation import (
    CancelledPreparation,
    PreparationThread,
    Prepared,
    PreparedPrefetch,
    rejection,
)
from worker.engine.prompt import PreparedSequence
from worker.engine.step_scheduler import StepScheduler
from worker.engine.text_embedder import TextEmbedder
from worker.engine.text_preparation import PreparedText
from worker.kv_memory.block import block_key_of
from worker.kv_memory.file_threads import Result
from worker.link.activity import EngineActivityRecord
from worker.link.facts import (
    CachedSequencesMeasured,
    EngineMeasured,
    Fact,
    PrefillStarted,
    SequenceOutput,
    SequenceRejected,
    StepCompleted,
)
from worker.link.orders import (
    CancelPrefixPrefetch,
    CancelSequence,
    EvictCachedSequence,
    LimitKVCaches,
    LoadModel,
    Order,
    PrefetchPrefix,
    SetBlasThreads,
    Stop,
    SubmitSequence,
    TrackSequence,
    UnloadModel,
)

_MEASURE_INTERVAL_S = 1.0
_MIN_LOADING_S = 0.05
_FINAL_WRITES_S = 2.0
_FINAL_WAIT_S = 0.01
_PASS_SHARE = 0.5
_ARRIVAL_WAIT_SHARE = 1 / 40
_MAX_ARRIVAL_WAIT_S = 0.006
"""An idle engine delays the first prompts by this share of their prefill time: prompts sent at the
same time arrive one after another, and rows that begin together step together."""

Send = Callable[[Fact], None]


class Engine:
    """Generates for all loaded models.

    `enqueue` and `stuck_s` may be used by any thread; everything else runs on the thread that calls
    `run`, the only one that calls MLX.
    """

    def __init__(
        self,
        send: Send,
        wait_for_capacity: Callable[[], None],
        *,
        max_batch_size: int,
        max_chunk_tokens: int,
        max_decode_stall_s: float,
        kv_budget_bytes: int | None = None,
        engines: int = 1,
        adaptive: AdaptiveBatchingSettings | None = None,
        min_batch_size: int = 1,
        evaluates_ahead: bool | None = None,
        kv_memory: PrefixCacheConfig = KV_MEMORY_DISABLED,
        activity: EngineActivityRecord | None = None,
        preparation_limit_s: float = 10.0,
    ) -> None:
        """
        Args:
            wait_for_capacity: blocks while the agent has too many unread facts.
            kv_budget_bytes: the limit of all KV caches; by default a share of the free memory.
            engines: the number of engines of this machine that share the free memory.
            adaptive: adapts the batch size of each model to its latency, between `min_batch_size`
                and `max_batch_size`; None fixes it at `max_batch_size`.
            evaluates_ahead: start evaluating a step before the tokens of the last one are read; by
                default on a GPU. On a CPU starting an evaluation waits for most of the step.
            kv_memory: settings of the KV memory.
            activity: the record of the current work, shared with the agent for crash attribution.
            preparation_limit_s: a prompt whose preparation takes longer is rejected.
        """
        self._activity = activity or EngineActivityRecord.private()
        self._send = send
        self._wait_for_capacity = wait_for_capacity
        self._max_batch_size = max_batch_size
        self._adaptive = adaptive
        self._min_batch_size = min_batch_size
        self._max_chunk_tokens = max_chunk_tokens
        # Not a `SimpleQueue`: up to Python 3.12 its `get` waits for ever if it is interrupted for
        # longer than its timeout (docs/decisions).
        self._inbox: queue.Queue[Order | Prepared | Result] = queue.Queue()
        self._kv_memory = KVBlockStore(kv_memory, self._inbox.put)
        self._embedder = TextEmbedder(self._activity)
        self._models = EngineModels(
            self._new_batch,
            self._kv_memory,
            self._embedder,
            self._activity,
            kv_budget_bytes=kv_budget_bytes,
            engines=engines,
        )
        self._prefetched = PrefixPrefetcher(self._kv_memory, self._prefix_cache_of)
        self._preparation = PreparationThread(
            self._models.find,
            self._prefetched.find,
            self._inbox.put,
            self._activity,
            preparation_limit_s,
        )
        self._max_pass_s = max_decode_stall_s
        self._prefilled = False
        self._step_scheduler = StepScheduler(
            self._models.batches,
            send,
            self._activity,
            max_decode_stall_s=max_decode_stall_s,
            evaluates_ahead=on_gpu() if evaluates_ahead is None else evaluates_ahead,
        )
        self._measured_at = 0.0
        self._busy_since: float | None = None  # None while idle

    def _new_batch(self, model: LoadedModel, accounting: KVAccounting) -> ModelBatch:
        adaptive = None
        if self._adaptive is not None:
            adaptive = AdaptiveBatchSize(self._adaptive, self._min_batch_size, self._max_batch_size)
        return ModelBatch(
            model,
            accounting,
            max_size=self._max_batch_size,
            max_chunk_tokens=self._max_chunk_tokens,
            adaptive=adaptive,
            prefix_cache=PrefixCache(self._kv_memory, model.layout, model.fingerprint),
        )

    def _prefix_cache_of(self, model: ModelId) -> PrefixCache | None:
        batch = self._models.batches.get(model)
        return batch.prefix_cache if batch is not None else None

    @property
    def stuck_s(self) -> float:
        """The seconds since the loop began its current step; 0 while idle."""
        busy_since = self._busy_since
        return time.monotonic() - busy_since if busy_since is not None else 0.0

    def enqueue(self, order: Order) -> None:
        """Enqueue an order; prompts are tokenised on a thread of their own first."""
        if isinstance(order, SubmitSequence | PrefetchPrefix | CancelPrefixPrefetch):
            self._preparation.enqueue(order)
        else:
            self._inbox.put(order)

    def run(self) -> None:
        """Serve until a `Stop` order. An exception leaves every sequence unfinished: the caller
        must end the process; the agent then reports the failure and starts a new engine."""
        self._preparation.start()
        self._kv_memory.start()
        running = True
        while running:
            running = self._handle_orders()
            self._prefetched.advance()
            if self._models.is_loading:
                self._load()
            if self._step_scheduler.can_step:
                self._busy_since = None
                self._wait_for_capacity()
                self._busy_since = time.monotonic()
                self._step_scheduler.step()
                if not len(self._step_scheduler):
                    self._measured_at = 0.0  # report at once when the engine becomes idle
            for cached in self._kv_memory.take_cached():
                self._send(cached)  # before prefill: the next turn of the session may be on its way
            self._prefill_or_embed()
            if self._kv_memory.can_write:
                self._kv_memory.write_one()
            self._measure()
            self._busy_since = None
        self._prefetched.forget_all()
        self._write_rest()
        self._kv_memory.close()

    def _handle_orders(self) -> bool:
        """Handle the items that have arrived; waits for one only while idle. Returns False after
        `Stop`."""
        for item in self._arrived():
            self._busy_since = time.monotonic()
            if isinstance(item, Result):
                self._kv_memory.handle_result(item)
                continue
            match item:
                case PreparedSequence():
                    self._start(item)
                    self._prefetched.forget(item.order.sequence)
                case PreparedText():
                    self._start_text(item)
                case SequenceRejected():
                    self._preparation.finish(item.sequence)
                    self._prefetched.forget(item.sequence)
                    self._send(item)
                case CancelledPreparation():
                    self._preparation.finish(item.order.sequence)
                    self._prefetched.forget(item.order.sequence)
                    self._send(StepCompleted([_cancelled(item.order)]))
                case PreparedPrefetch():
                    self._prefetched.add(item.prepared)
                case CancelPrefixPrefetch():
                    self._prefetched.forget(item.sequence)
                case CancelSequence():
                    self._cancel(item.sequence)
                case LoadModel():
                    self._models.load(item)
                case UnloadModel():
                    self._unload(item.model)
                case TrackSequence():
                    self._kv_memory.sequences.track(block_key_of(item.end), pinned=item.pinned)
                case EvictCachedSequence():
                    self._kv_memory.drop_sequence(block_key_of(item.end))
                case LimitKVCaches():
                    self._limit_memory(item)
                case SetBlasThreads():
                    use_threads(item.threads)
                case Stop():
                    return False
                case (
                    SubmitSequence() | PrefetchPrefix()
                ):  # `enqueue` sends these to the preparation thread
                    raise AssertionError("a prompt was not prepared")
        return True

    def _arrived(self) -> Iterator[Order | Prepared | Result]:
        busy = (
            self._step_scheduler.can_step
            or len(self._embedder) > 0
            or self._models.is_loading
            or self._kv_memory.can_write
        )
        wait_s, until = 0.0 if busy else _MEASURE_INTERVAL_S, math.inf
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._inbox.get(timeout=wait_s)
                now = time.monotonic()
                if not busy:
                    until = min(until, now + self._arrival_wait_s)
                    wait_s = max(0.0, until - now)

    @property
    def _arrival_wait_s(self) -> float:
        """The seconds to wait for more prompts that arrive together with the first ones."""
        return min(
            _MAX_ARRIVAL_WAIT_S, _ARRIVAL_WAIT_SHARE * self._step_scheduler.waiting_prefill_s
        )

    def _write_rest(self) -> None:
        """Write blocks to disk that are in memory only; the end of the process would lose them."""
        until = time.monotonic() + _FINAL_WRITES_S
        while self._kv_memory.unwritten and time.monotonic() < until:
            if self._kv_memory.can_write:
                self._kv_memory.write_one()
            with contextlib.suppress(queue.Empty):
                if isinstance(item := self._inbox.get(timeout=_FINAL_WAIT_S), Result):
                    self._kv_memory.handle_result(item)

    def _start(self, prepared: PreparedSequence) -> None:
        order = prepared.order
        cancelled = self._preparation.finish(order.sequence)
        if self._models.find(order.model) is None:  # unloaded while its prompt was prepared
            self._send(rejection(order, "model_unavailable", f"{order.model} was unloaded"))
            return
        if not cancelled:
            self._send(PrefillStarted(order.sequence, len(prepared.prompt_ids)))
        sequence, replayed = prepared.sequence, prepared.replayed
        if sequence is None:  # the order only counts the tokens of its prompt
            counted = SequenceOutput(order.sequence, 0, [], "", "stop")
            self._send(StepCompleted([_cancelled(order) if cancelled else counted]))
            return
        if replayed:
            self._send(StepCompleted(replayed))
            if replayed[-1].finish_reason is not None:
                return
        if cancelled:
            self._send(StepCompleted([sequence.cancel()]))
            return
        self._step_scheduler.add(sequence, prepared)

    def _start_text(self, text: PreparedText) -> None:
        order = text.order
        cancelled = self._preparation.finish(order.sequence)
        if self._models.find(order.model) is None:  # unloaded while its text was prepared
            self._send(rejection(order, "model_unavailable", f"{order.model} was unloaded"))
        elif cancelled:
            self._send(StepCompleted([_cancelled(order)]))
        else:
            self._send(PrefillStarted(order.sequence, len(text.token_ids)))
            self._embedder.add(text)

    def _prefill_or_embed(self) -> None:
        """Delay decoding rows once: for prompts or for texts, in turn if both wait."""
        embeds_first = self._prefilled and len(self._embedder) > 0
        self._prefilled = not embeds_first and self._step_scheduler.prefill()
        if not self._prefilled and len(self._embedder) > 0:
            self._embed()

    def _embed(self) -> None:
        """Run one pass over texts; rows that decode wait for half as long as for prefill."""
        self._busy_since = None
        self._wait_for_capacity()
        self._busy_since = time.monotonic()
        self._step_scheduler.read_ahead()  # so that a crash is attributed to the texts
        share = _PASS_SHARE if self._step_scheduler.step_times else 1.0
        self._send(StepCompleted(self._embedder.embed(share * self._max_pass_s)))
        self._step_scheduler.skip_idle_time()

    def _cancel(self, sequence_id: int) -> None:
        if (sequence := self._step_scheduler.remove(sequence_id)) is not None:
            self._send(StepCompleted([sequence.cancel()]))
        elif (text := self._embedder.remove(sequence_id)) is not None:
            self._send(StepCompleted([_cancelled(text.order)]))
        else:
            self._preparation.cancel(sequence_id)

    def _load(self) -> None:
        """Load for a while: for about as long as a step of the rows that decode."""
        self._step_scheduler.read_ahead()  # so that a crash is attributed to the model that loads
        reads = self._models.reads_weights  # a slow disk must not count as a stuck engine
        self._busy_since = None if reads else time.monotonic()
        for fact in self._models.load_for(
            max(_MIN_LOADING_S, sum(self._step_scheduler.step_times))
        ):
            self._send(fact)
        self._step_scheduler.skip_idle_time()

    def _unload(self, model: ModelId) -> None:
        for sequence in self._step_scheduler.remove_all(model):
            self._send(StepCompleted([sequence.cancel()]))
        for text in self._embedder.remove_model(model):
            self._send(StepCompleted([_cancelled(text.order)]))
        self._prefetched.forget_all(model)
        self._models.unload(model)

    def _limit_memory(self, order: LimitKVCaches) -> None:
        self._step_scheduler.read_ahead()
        self._models.limit_kv(order.kv_bytes)
        self._step_scheduler.report_preempted()
        if order.release_cached_memory:
            release_memory()
        self._measured_at = 0.0

    def _measure(self) -> None:
        now = time.monotonic()
        if now - self._measured_at >= _MEASURE_INTERVAL_S:
            self._measured_at = now
            self._kv_memory.drop_unused()
            if measured := self._kv_memory.measured_sequences():
                self._send(CachedSequencesMeasured(measured))
            accounting = self._models.accounting
            self._send(
                EngineMeasured(
                    len(self._step_scheduler) + len(self._embedder),
                    mx.get_active_memory(),
                    mx.get_cache_memory(),
                    accounting.held_bytes,
                    accounting.budget_bytes,
                    accounting.preemptions,
                    round(max(self._step_scheduler.step_times, default=0) * 1000, 2),
                    [batch.measured(model, now) for model, batch in self._models.batches.items()],
                    self._kv_memory.measured(),
                )
            )


def _cancelled(order: SubmitSequence) -> SequenceOutput:
    return SequenceOutput(order.sequence, len(order.answer_ids), [], "", "cancelled")
