"""The thread that prepares prompts: what it does must not hold up the steps of others."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from shared.errors import ClusterError
from shared.ids import ModelId
from worker.engine.model import LoadedModel
from worker.engine.prompt import PreparedSequence, prepare
from worker.link.activity import ActivityRecord, EngineActivity
from worker.link.facts import SequenceRejected
from worker.link.orders import CancelPrefetch, Prefetch, Submit


@dataclass(frozen=True, slots=True)
class PreparationFailed:
    """A sequence that was cancelled before its prompt was looked at."""

    order: Submit


@dataclass(frozen=True, slots=True)
class PromptPrefetched:
    """A prompt that will come."""

    prepared: PreparedSequence


Prepared = (
    PreparedSequence | SequenceRejected | PreparationFailed | PromptPrefetched | CancelPrefetch
)


class PromptPreparation:
    """Prompts on their way to the engine thread. `give` may be called by any thread; the rest is
    the engine thread's.

    Args:
        find: the model of that name, if it is loaded.
        known: the prompt of an order that was foreseen; asked on the preparing thread.
        activity: where that thread writes which prompt it is at.
        put: takes what became of each order, on the preparing thread.
    """

    def __init__(
        self,
        find: Callable[[ModelId], LoadedModel | None],
        known: Callable[[Submit], PreparedSequence | None],
        put: Callable[[Prepared], None],
        activity: ActivityRecord,
    ) -> None:
        self._find = find
        self._known = known
        self._put = put
        self._activity = activity
        self._orders: queue.SimpleQueue[Submit | Prefetch | CancelPrefetch] = queue.SimpleQueue()
        self._sequences: set[int] = set()
        self._cancelled: set[int] = set()  # always a part of _sequences

    def start(self) -> None:
        threading.Thread(target=self._run, name="prepare", daemon=True).start()

    def give(self, order: Submit | Prefetch | CancelPrefetch) -> None:
        if isinstance(order, Submit):
            self._sequences.add(order.sequence)
        self._orders.put(order)

    def cancel(self, sequence: int) -> None:
        """Have a sequence not started; one that is not here is ignored."""
        if sequence in self._sequences:
            self._cancelled.add(sequence)

    def leave(self, sequence: int) -> bool:
        """A sequence has come out; whether it was cancelled meanwhile."""
        self._sequences.discard(sequence)
        cancelled = sequence in self._cancelled
        self._cancelled.discard(sequence)
        return cancelled

    def _run(self) -> None:
        while True:
            self._carry_out(self._orders.get())

    def _carry_out(self, order: Submit | Prefetch | CancelPrefetch) -> None:
        match order:
            case Submit():
                # To read it here may come too late, which is no harm.
                cancelled = order.sequence in self._cancelled
                self._put(PreparationFailed(order) if cancelled else self._prepare(order))
            case Prefetch():
                prepared = self._prepare(order.order)
                if isinstance(prepared, PreparedSequence):  # else told when it comes
                    self._put(PromptPrefetched(prepared))
            case CancelPrefetch():
                self._put(order)

    def _prepare(self, order: Submit) -> PreparedSequence | SequenceRejected:
        if (known := self._known(order)) is not None:
            return known
        model = self._find(order.model)
        if model is None:
            return refused(order, "model_unavailable", f"{order.model} is not loaded")
        self._activity.prepare(EngineActivity("prompt", order.model, (order.sequence,)))
        try:
            return prepare(order, model)
        except ClusterError as error:
            return SequenceRejected(order.sequence, error.code, error.message, error.param)
        except BaseException as error:  # a broken tokenizer or template fails one request only
            message = f"the prompt could not be prepared: {type(error).__name__}: {error}"
            return refused(order, "request_failed", message)
        finally:
            self._activity.prepare(None)


def refused(order: Submit, code: str, message: str) -> SequenceRejected:
    return SequenceRejected(order.sequence, code, message)
