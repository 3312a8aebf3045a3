"""The models of an engine: loads them in small steps, and shares one KV budget among their
batches."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from shared.errors import ModelError
from shared.ids import ModelId
from worker.engine.batch import ModelBatch
from worker.engine.device import free_for_kv_bytes, release_memory
from worker.engine.embedding.model import EmbeddingModel
from worker.engine.kv_block_store import KVBlockStore
from worker.engine.load_errors import exit_description
from worker.engine.memory_accounting import KVAccounting
from worker.engine.model import LoadedModel, ModelLoadJob
from worker.engine.row_cache import BLOCK_TOKENS
from worker.engine.text_embedder import TextEmbedder
from worker.link.activity import EngineActivity, EngineActivityRecord
from worker.link.facts import Fact, ModelFailed, ModelLoaded, ModelLoading
from worker.link.orders import LoadModel

_PROGRESS_STEP = 0.05
_LOADING_TIMEOUT_S = 300.0
"""Loading without progress fails after this time, for example if the tokenizer hangs."""


class EngineModels:
    """Belongs to the engine thread, except for `find`.

    Args:
        new_batch: makes the batch of a loaded model.
        kv_memory: uses the part of the budget that the caches leave.
        embedder: serves the models that embed or score texts.
        activity: records which model is being loaded.
        kv_budget_bytes: the limit of all KV caches; by default a share of the free memory.
        engines: the number of engines of this machine that share the free memory.

    Attributes:
        batches: of the loaded models that generate.
        accounting: of their KV caches.
    """

    def __init__(
        self,
        new_batch: Callable[[LoadedModel, KVAccounting], ModelBatch],
        kv_memory: KVBlockStore,
        embedder: TextEmbedder,
        activity: EngineActivityRecord,
        *,
        kv_budget_bytes: int | None,
        engines: int,
    ) -> None:
        self._kv_memory = kv_memory
        self._embedder = embedder
        self._activity = activity
        self._new_batch = new_batch
        self._kv_budget_bytes = kv_budget_bytes
        self._allowed_kv_bytes: int | None = None
        self._own_kv_bytes = kv_budget_bytes or 0
        self._engines = engines
        self._models: dict[ModelId, LoadedModel | EmbeddingModel] = {}
        self._waiting: deque[LoadModel] = deque()
        self._loading: ModelLoadJob | None = None
        self._reported_progress = 0.0
        self._progressed_at = 0.0
        self._abandoned: list[ModelLoadJob] = []
        self.batches: dict[ModelId, ModelBatch] = {}
        self.accounting = KVAccounting(self._own_kv_bytes, kv_memory.limit)

    def find(self, model: ModelId) -> LoadedModel | EmbeddingModel | None:
        return self._models.get(model)

    # Loading.

    @property
    def is_loading(self) -> bool:
        return self._loading is not None or bool(self._waiting)

    def load(self, order: LoadModel) -> None:
        """Queue a model to be loaded by `load_for`."""
        self._waiting.append(order)

    @property
    def reads_weights(self) -> bool:
        """Whether a model's weights are being read from disk."""
        return self._loading is not None and 0 < self._loading.progress < 1

    def load_for(self, seconds: float) -> Iterable[Fact]:
        """Load for about `seconds`; yield the facts to send."""
        if self._loading is None:
            order = self._waiting.popleft()
            if (model := self._models.get(order.model)) is not None:
                yield _loaded(order.model, model)
                return
            self._loading = ModelLoadJob(order)
            self._reported_progress, self._progressed_at = 0.0, time.monotonic()
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
                yield from self._progress_facts(loading, before)
        self._activity.end()

    def _progress_facts(self, loading: ModelLoadJob, before: float) -> Iterable[Fact]:
        """Yield the progress, in steps of 5 %, or a failure after a time without progress."""
        now, model_id, progress = time.monotonic(), loading.order.model, loading.progress
        if progress > before:
            self._progressed_at = now
        elif now - self._progressed_at >= _LOADING_TIMEOUT_S:
            self._loading = None
            self._abandoned.append(loading)  # closing it would wait for the tokenizer's thread
            yield ModelFailed(model_id, f"no progress for {_LOADING_TIMEOUT_S:.0f} s")
            return
        if progress - self._reported_progress >= _PROGRESS_STEP:
            self._reported_progress = progress
            yield ModelLoading(model_id, progress)

    def _add(self, model: LoadedModel | EmbeddingModel, model_id: ModelId) -> ModelLoaded:
        """Serve a model; the context of one that generates is limited to what fits into the KV
        budget.

        Raises:
            ModelError: the KV budget holds less than one block of tokens.
        """
        self._update_budget()
        if isinstance(model, EmbeddingModel):
            self._models[model_id] = model
            self._embedder.serve(model_id, model)
            return _loaded(model_id, model)
        max_tokens = self.accounting.max_tokens(model.layout)
        if max_tokens < BLOCK_TOKENS:
            raise ModelError(
                f"{model_id}: the KV cache budget of {self.accounting.budget_bytes / 1e6:.0f} MB "
                f"holds less than {BLOCK_TOKENS} tokens of this model"
            )
        model = replace(model, max_context_tokens=min(model.max_context_tokens, max_tokens))
        self._models[model_id] = model
        self.batches[model_id] = self._new_batch(model, self.accounting)
        return _loaded(model_id, model)

    def unload(self, model_id: ModelId) -> None:
        """Unload a model, or stop loading it; its sequences must have been removed."""
        self._waiting = deque(order for order in self._waiting if order.model != model_id)
        if self._loading is not None and self._loading.order.model == model_id:
            self._loading.close()
            self._loading = None
        self._models.pop(model_id, None)
        if (batch := self.batches.pop(model_id, None)) is not None:
            batch.close()
        release_memory()
        self._update_budget()

    # Memory.

    def limit_kv(self, allowed_bytes: int | None) -> None:
        """Limit KV caches in addition to the engine's own budget; None removes the limit. Preempts
        sequences that no longer fit."""
        self._allowed_kv_bytes = allowed_bytes
        self._set_budget()
        self.accounting.ensure_free(lambda: 0)

    def _update_budget(self) -> None:
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


def _advance(loading: ModelLoadJob, seconds: float) -> LoadedModel | EmbeddingModel | None:
    """Continue loading a model; its code cannot end the process.

    Raises:
        ModelError: it cannot be loaded.
    """
    try:
        return loading.advance(seconds)
    except ModelError:
        raise
    except BaseException as error:  # some modules raise `SystemExit` if a package is missing
        raise ModelError(f"{loading.order.path}: {exit_description(error)}") from error


def _loaded(model_id: ModelId, model: LoadedModel | EmbeddingModel) -> ModelLoaded:
    if isinstance(model, EmbeddingModel):
        return ModelLoaded(
            model_id, model.max_tokens, model.memory_bytes, model.abilities, list(model.warnings)
        )
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
