"""The models of an engine: loaded a little at a time, each with its batch; one budget for all
their KV caches."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from shared.errors import ModelError
from shared.ids import ModelId
from worker.engine.batch import Batch
from worker.engine.device import free_for_kv_bytes, release_memory
from worker.engine.kv_memory import KVMemory
from worker.engine.load_errors import ended_by_code
from worker.engine.memory_accounting import KVAccounting
from worker.engine.model import LoadedModel, Loading
from worker.engine.row_cache import BLOCK_TOKENS
from worker.link.activity import ActivityRecord, EngineActivity
from worker.link.facts import Fact, ModelFailed, ModelLoaded, ModelLoading
from worker.link.orders import LoadModel

_TOLD_EVERY = 0.05
_LONGEST_STANDSTILL_S = 300.0
"""Of a model that is loaded while steps of others go on: its tokenizer does not come, perhaps."""


class ServedModels:
    """Belongs to the engine thread, but for `find`.

    Args:
        new_batch: the batch for a model that was loaded.
        kv_memory: what is kept of texts; it takes of the budget what the caches leave.
        activity: where it writes which model it loads.
        kv_budget_bytes: for all KV caches; by default a share of what is free.
        engines: among how many engines of this machine that is shared.

    Attributes:
        batches: of the loaded models.
        ledger: what their KV caches take.
    """

    def __init__(
        self,
        new_batch: Callable[[LoadedModel, KVAccounting], Batch],
        kv_memory: KVMemory,
        activity: ActivityRecord,
        *,
        kv_budget_bytes: int | None,
        engines: int,
    ) -> None:
        self._kv_memory = kv_memory
        self._activity = activity
        self._new_batch = new_batch
        self._kv_budget_bytes = kv_budget_bytes
        self._allowed_kv_bytes: int | None = None
        self._own_kv_bytes = kv_budget_bytes or 0
        self._engines = engines
        self._models: dict[ModelId, LoadedModel] = {}
        self._waiting: deque[LoadModel] = deque()
        self._loading: Loading | None = None
        self._told_progress = 0.0
        self._moved_at = 0.0  # when the progress was another one
        self._abandoned: list[Loading] = []
        self.batches: dict[ModelId, Batch] = {}
        self.accounting = KVAccounting(self._own_kv_bytes, kv_memory.limit)

    def find(self, model: ModelId) -> LoadedModel | None:
        return self._models.get(model)

    # Loading.

    @property
    def is_loading(self) -> bool:
        return self._loading is not None or bool(self._waiting)

    def load(self, order: LoadModel) -> None:
        """Load a model, after those that were ordered before; `load_some` does it."""
        self._waiting.append(order)

    @property
    def reads_weights(self) -> bool:
        """Whether the model that is loaded waits for the disk, as far as is known."""
        return self._loading is not None and 0 < self._loading.progress < 1

    def load_some(self, seconds: float) -> Iterable[Fact]:
        """Load for about so long; yields what there is to tell."""
        if self._loading is None:
            order = self._waiting.popleft()
            if (model := self._models.get(order.model)) is not None:
                yield _loaded(order.model, model)
                return
            self._loading = Loading(order)
            self._told_progress, self._moved_at = 0.0, time.monotonic()
            yield ModelLoading(order.model, 0.0)
        loading = self._loading
        model_id, before = loading.order.model, loading.progress
        self._activity.begin(EngineActivity("load", model_id))
        try:
            model = _advance(loading, seconds)
            loaded = self._add(model, model_id) if model is not None else None
        except ModelError as error:
            self._loading = None
            release_memory()
            yield ModelFailed(model_id, error.message)
        else:
            if loaded is not None:
                self._loading = None
                yield loaded
            else:
                yield from self._told(loading, before)
        self._activity.end()

    def _told(self, loading: Loading, before: float) -> Iterable[Fact]:
        """How far it is, unless that was told just now; or that it stands still."""
        now, model_id, progress = time.monotonic(), loading.order.model, loading.progress
        if progress > before:
            self._moved_at = now
        elif now - self._moved_at >= _LONGEST_STANDSTILL_S:
            self._loading = None
            self._abandoned.append(loading)  # to close it is to wait for what it waits for
            yield ModelFailed(model_id, f"no progress for {_LONGEST_STANDSTILL_S:.0f} s")
            return
        if progress - self._told_progress >= _TOLD_EVERY:
            self._told_progress = progress
            yield ModelLoading(model_id, progress)

    def _add(self, model: LoadedModel, model_id: ModelId) -> ModelLoaded:
        """Serve a model; no context is longer than what the KV budget holds.

        Raises:
            ModelError: that is nearly nothing.
        """
        self._renew_budget()
        most_tokens = self.accounting.max_tokens(model.layout)
        if most_tokens < BLOCK_TOKENS:
            raise ModelError(
                f"{model_id}: {self.accounting.budget_bytes / 1e6:.0f} MB for KV caches hold less "
                f"than {BLOCK_TOKENS} tokens of it"
            )
        model = replace(model, max_context_tokens=min(model.max_context_tokens, most_tokens))
        self._models[model_id] = model
        self.batches[model_id] = self._new_batch(model, self.accounting)
        return _loaded(model_id, model)

    def unload(self, model_id: ModelId) -> None:
        """Forget a model, loaded or on its way; its sequences must be gone."""
        self._waiting = deque(order for order in self._waiting if order.model != model_id)
        if self._loading is not None and self._loading.order.model == model_id:
            self._loading.close()
            self._loading = None
        self._models.pop(model_id, None)
        if (batch := self.batches.pop(model_id, None)) is not None:
            batch.close()
        release_memory()
        self._renew_budget()

    # Memory.

    def limit_kv(self, allowed_bytes: int | None) -> None:
        """KV caches may take so much at most, whatever the engine's own budget is; who has no
        room then gives way."""
        self._allowed_kv_bytes = allowed_bytes
        self._set_budget()
        self.accounting.make_room(lambda: 0)

    def _renew_budget(self) -> None:
        if self._kv_budget_bytes is None:
            self._own_kv_bytes = (
                free_for_kv_bytes(self.accounting.held_bytes + self._kv_memory.memory.held_bytes)
                // self._engines
            )
        self._set_budget()

    def _set_budget(self) -> None:
        own, allowed = self._own_kv_bytes, self._allowed_kv_bytes
        self.accounting.budget_bytes = own if allowed is None else min(own, allowed)
        self.accounting.lend_rest()


def _advance(loading: Loading, seconds: float) -> LoadedModel | None:
    """Go on with a model; whatever its code does about that, the process does not end.

    Raises:
        ModelError: it cannot be loaded.
    """
    try:
        return loading.advance(seconds)
    except ModelError:
        raise
    except BaseException as error:  # `SystemExit` where a package is missing that it needs
        raise ModelError(f"{loading.order.path}: {ended_by_code(error)}") from error


def _loaded(model_id: ModelId, model: LoadedModel) -> ModelLoaded:
    verdict = model.verdict
    return ModelLoaded(
        model_id,
        model.max_context_tokens,
        model.memory_bytes,
        model.abilities,
        list(model.warnings),
        batching=verdict.batching,
        batching_reason=verdict.reason,
        probe_ms=None if verdict.probe_s is None else round(1000 * verdict.probe_s, 1),
    )
