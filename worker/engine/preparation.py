"""The thread that prepares prompts, so that preparation does not delay the steps of other
sequences."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from shared.errors import ClusterError
from shared.ids import ModelId
from worker.engine.embedding.model import EmbeddingModel
from worker.engine.model import LoadedModel
from worker.engine.prompt import PreparedSequence, prepare
from worker.engine.text_preparation import PreparedText, prepare_text
from worker.link.activity import EngineActivity, EngineActivityRecord
from worker.link.facts import SequenceRejected
from worker.link.orders import CancelPrefixPrefetch, PrefetchPrefix, SubmitSequence


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
    methods belong to the engine thread. All callbacks run on the preparation thread.

    Args:
        find: returns a model by its name; None if it is not loaded.
        find_prefetched: returns the prepared prompt of an order, if it was prefetched.
        put: receives the result of each order.
        activity: records which prompt is being prepared.
    """

    def __init__(
        self,
        find: Callable[[ModelId], LoadedModel | EmbeddingModel | None],
        find_prefetched: Callable[[SubmitSequence], PreparedSequence | None],
        put: Callable[[Prepared], None],
        activity: EngineActivityRecord,
    ) -> None:
        self._find = find
        self._find_prefetched = find_prefetched
        self._put = put
        self._activity = activity
        self._orders: queue.SimpleQueue[SubmitSequence | PrefetchPrefix | CancelPrefixPrefetch] = (
            queue.SimpleQueue()
        )
        self._sequences: set[int] = set()
        self._cancelled: set[int] = set()  # always a part of _sequences

    def start(self) -> None:
        threading.Thread(target=self._run, name="prepare", daemon=True).start()

    def enqueue(self, order: SubmitSequence | PrefetchPrefix | CancelPrefixPrefetch) -> None:
        if isinstance(order, SubmitSequence):
            self._sequences.add(order.sequence)
        self._orders.put(order)

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
        while True:
            self._handle(self._orders.get())

    def _handle(self, order: SubmitSequence | PrefetchPrefix | CancelPrefixPrefetch) -> None:
        match order:
            case SubmitSequence():
                # Reading the set without a lock may miss a cancellation; `finish` reports it then.
                cancelled = order.sequence in self._cancelled
                self._put(CancelledPreparation(order) if cancelled else self._prepare(order))
            case PrefetchPrefix():
                prepared = self._prepare(order.order)
                if isinstance(prepared, PreparedSequence):  # else its submission reports the error
                    self._put(PreparedPrefetch(prepared))
            case CancelPrefixPrefetch():
                self._put(order)

    def _prepare(self, order: SubmitSequence) -> PreparedSequence | PreparedText | SequenceRejected:
        if (prefetched := self._find_prefetched(order)) is not None:
            return prefetched
        model = self._find(order.model)
        if model is None:
            return rejection(order, "model_unavailable", f"{order.model} is not loaded")
        self._activity.prepare(EngineActivity("prompt", order.model, (order.sequence,)))
        try:
            if isinstance(model, EmbeddingModel):
                return prepare_text(order, model)
            return prepare(order, model)
        except ClusterError as error:
            return SequenceRejected(order.sequence, error.code, error.message, error.param)
        except BaseException as error:  # a broken tokenizer or template fails one request only
            message = f"the prompt could not be prepared: {type(error).__name__}: {error}"
            return rejection(order, "request_failed", message)
        finally:
            self._activity.prepare(None)


def rejection(order: SubmitSequence, code: str, message: str) -> SequenceRejected:
    return SequenceRejected(order.sequence, code, message)
