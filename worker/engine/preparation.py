"""The thread that prepares prompts, so that preparation does not delay the steps of other
sequences."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from shared.errors import ClusterError, Unavailable
from shared.ids import ModelId
from worker.engine.embedding.model import EmbeddingModel
from worker.engine.model import LoadedModel
from worker.engine.preparation_queue import PreparationQueue
from worker.engine.prompt import PreparedSequence, prepare
from worker.engine.text_preparation import PreparedText, prepare_text
from worker.engine.time_limit import TimeLimit, TimeLimitExceeded
from worker.link.activity import EngineActivity, EngineActivityRecord
from worker.link.facts import SequenceRejected
from worker.link.orders import CancelPrefixPrefetch, PrefetchPrefix, SubmitSequence

_SHORT_AT_ONCE = 16
"""Number of short prompts that interrupt a long one at once."""


@dataclass(frozen=True, slots=True)
class CancelledPreparation:
    """A sequence that was cancelled before its prompt was prepared."""

    order: SubmitSequence


@dataclass(frozen=True, slots=True)
class PreparedPrefetch:
    """A prepared prompt whose request has no slot yet."""

    prepared: PreparedSequence


Prepared = (
    PreparedSequence
    | PreparedText
    | SequenceRejected
    | CancelledPreparation
    | PreparedPrefetch
    | CancelPrefixPrefetch
)


class PreparationThread:
    """Prepares prompts for the engine thread. `enqueue` may be called by any thread; the other
    methods belong to the engine thread. All callbacks run on the preparation thread, except `put`,
    which any thread may call.

    Clients take turns. While a long text is tokenised, short prompts of other clients are prepared.

    Args:
        find: returns a model by its name; None if it is not loaded.
        find_prefetched: returns the prepared prompt of an order, if it was prefetched.
        put: receives the result of each order.
        activity: records which prompt is being prepared.
        limit_s: a prompt that takes longer is rejected.
    """

    def __init__(
        self,
        find: Callable[[ModelId], LoadedModel | EmbeddingModel | None],
        find_prefetched: Callable[[SubmitSequence], PreparedSequence | None],
        put: Callable[[Prepared], None],
        activity: EngineActivityRecord,
        limit_s: float = 10.0,
    ) -> None:
        self._find = find
        self._find_prefetched = find_prefetched
        self._put = put
        self._activity = activity
        self._limit = TimeLimit(limit_s)
        self._queue = PreparationQueue()
        self._sequences: set[int] = set()
        self._cancelled: set[int] = set()  # always a part of _sequences
        self._lock = threading.Lock()
        self._prefetches: set[int] = set()  # that are still wanted
        self._preparing: list[SubmitSequence] = []  # and what interrupts it

    def start(self) -> None:
        threading.Thread(target=self._run, name="prepare", daemon=True).start()

    def enqueue(self, order: SubmitSequence | PrefetchPrefix | CancelPrefixPrefetch) -> None:
        match order:
            case SubmitSequence():
                self._sequences.add(order.sequence)
                self._queue.put(order)
            case PrefetchPrefix():
                with self._lock:
                    self._prefetches.add(order.order.sequence)
                self._queue.put(order)
            case CancelPrefixPrefetch():
                with self._lock:  # what was prepared before is forgotten, and nothing follows
                    self._prefetches.discard(order.sequence)
                    self._put(order)

    def cancel(self, sequence: int) -> None:
        """Cancel a sequence that is being prepared; unknown sequences are ignored."""
        if sequence in self._sequences:
            self._cancelled.add(sequence)

    def finish(self, sequence: int) -> bool:
        """Forget a sequence whose preparation ended; return whether it was cancelled meanwhile."""
        self._sequences.discard(sequence)
        cancelled = sequence in self._cancelled
        self._cancelled.discard(sequence)
        return cancelled

    def _run(self) -> None:
        self._limit.start()
        while True:
            self._handle(self._queue.take())

    def _pause(self) -> None:
        """Prepare short prompts of other clients; called while a long one is prepared."""
        if len(self._preparing) == 1:
            self._limit.suspended(self._handle_short)

    def _handle_short(self) -> None:
        for _ in range(_SHORT_AT_ONCE):
            order = self._queue.take_short(other_than=self._preparing[0].client)
            if order is None:
                return
            self._handle(order)

    def _handle(self, order: SubmitSequence | PrefetchPrefix) -> None:
        if isinstance(order, SubmitSequence):
            # Reading the set without a lock may miss a cancellation; `finish` reports it then.
            cancelled = order.sequence in self._cancelled
            self._put(CancelledPreparation(order) if cancelled else self._prepare(order))
            return
        sequence = order.order.sequence
        if sequence not in self._prefetches:
            return
        prepared = self._prepare(order.order)
        with self._lock:
            wanted = sequence in self._prefetches
            self._prefetches.discard(sequence)
            # An error is reported by the submission.
            if wanted and isinstance(prepared, PreparedSequence):
                self._put(PreparedPrefetch(prepared))

    def _prepare(self, order: SubmitSequence) -> PreparedSequence | PreparedText | SequenceRejected:
        self._preparing.append(order)
        self._record()
        try:
            return self._limit.run(lambda: self._prepared(order))
        except ClusterError as error:
            return SequenceRejected(order.sequence, error.code, error.message, error.param)
        except TimeLimitExceeded:
            message = f"the prompt was not prepared within {self._limit.limit_s:g} s"
            return rejection(order, "request_failed", message)
        except BaseException as error:  # a broken tokenizer or template fails one request only
            message = f"the prompt could not be prepared: {type(error).__name__}: {error}"
            return rejection(order, "request_failed", message)
        finally:
            self._preparing.pop()
            self._record()

    def _prepared(self, order: SubmitSequence) -> PreparedSequence | PreparedText:
        if (prefetched := self._find_prefetched(order)) is not None:
            return prefetched
        model = self._find(order.model)
        if model is None:
            raise Unavailable(f"{order.model} is not loaded", code="model_unavailable")
        if isinstance(model, EmbeddingModel):
            return prepare_text(order, model, self._pause)
        return prepare(order, model, self._pause)

    def _record(self) -> None:
        order = self._preparing[-1] if self._preparing else None
        self._activity.prepare(
            EngineActivity("prompt", order.model, (order.sequence,)) if order else None
        )


def rejection(order: SubmitSequence, code: str, message: str) -> SequenceRejected:
    return SequenceRejected(order.sequence, code, message)
