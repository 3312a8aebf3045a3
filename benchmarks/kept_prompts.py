"""Prompts that are kept on disk and brought back, by the engine's own classes without its loop.
Import it only once the BLAS is loaded."""

import queue
from pathlib import Path

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from benchmarks.engine_alone import sampling
from shared.ids import ModelId
from worker.engine.cache_blocks import BlockCodec
from worker.engine.caches import Cache
from worker.engine.kv_block_store import KVBlockStore, PrefixCacheConfig
from worker.engine.model import LoadedModel
from worker.engine.prefill import PendingPrefill, PrefillBatch, PrefillRow
from worker.engine.prefix_cache import PrefixCache
from worker.engine.prompt import PreparedSequence
from worker.kv_memory.block_tree import NO_MATCH
from worker.kv_memory.file_threads import Result
from worker.link.orders import SubmitSequence

_BLOCK_TOKENS = 256
_CHUNK_TOKENS = 512
_DISK_BYTES = 2**40
_LIMIT_S = 60.0


class KeptPrompts:
    """A KV memory; a context manager.

    Args:
        folder: for its files.
        bits: of what is kept; None for as it is.

    Attributes:
        memory_bytes: what all prompts took in memory.
        disk_bytes: what their files take.
    """

    def __init__(self, model: LoadedModel, folder: Path, bits: int | None) -> None:
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        settings = PrefixCacheConfig(
            block_tokens=_BLOCK_TOKENS, path=folder, disk_bytes=_DISK_BYTES, bits=bits
        )
        self._memory = KVBlockStore(settings, self._results.put)
        self._cache = PrefixCache(self._memory, model.layout, model.fingerprint)
        self._model = model
        self.memory_bytes = 0

    def __enter__(self) -> "KeptPrompts":
        self._memory.start()
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.close()

    @property
    def disk_bytes(self) -> int:
        assert self._memory.files is not None
        return self._memory.files.held_bytes

    def keep(self, job: PrefillBatch) -> None:
        """Have a prompt that is prefilled on disk, and no more in memory."""
        files = self._memory.files
        (pending,) = job.pending
        recorder = self._cache.recorder(pending.id, NO_MATCH, on_disk=True)
        assert files is not None and recorder is not None
        network, layout, row = (
            self._model.network,
            self._model.layout,
            PrefillRow(pending, recorder),
        )
        own = PrefillBatch(
            network, layout, [row], job.cache, job.done
        )  # a job stores its rest once
        own.record_rest()
        recorder.close()
        self.memory_bytes += self._memory.memory.held_bytes
        while self._memory.unwritten or files.busy:
            if self._memory.can_write:
                self._memory.write_one()
            else:
                self._take()
        if files.problem is not None:
            raise SystemExit(files.problem)
        self._forget()

    def restored(self, job: PrefillBatch, room: int) -> Cache:
        """The cache of a prompt that was kept, out of its files, with room for more tokens."""
        (pending,) = job.pending
        restore = self._cache.restore(pending.ids_to_prefill)
        while not restore.ready:
            self._take()
        match = self._cache.find(pending.ids_to_prefill, in_memory=True)
        assert match.tokens == len(pending.ids_to_prefill)
        cache = self._cache.restored([match], match.tokens, match.tokens + room)
        restore.close()
        self._forget()
        return cache

    def _forget(self) -> None:
        """Only what is on disk stays."""
        self._memory.limit(0)
        self._memory.limit(self._memory.settings.memory_bytes)

    def _take(self) -> None:
        self._memory.handle_result(self._results.get(timeout=_LIMIT_S))


def prefilled(model: LoadedModel, ids: list[int], room: int) -> PrefillBatch:
    """All tokens but the last, in a cache with room for more."""
    order = SubmitSequence(0, ModelId("model"), None, None, ids, room, [], [], sampling())
    pending = PendingPrefill(PreparedSequence(order, ids, room), 0.0, 0.0, 0.0)
    cache = model.layout.new_cache(1, len(ids) - 1 + room)
    job = PrefillBatch(model.network, model.layout, [PrefillRow(pending)], cache)
    while not job.complete:
        job.advance(_CHUNK_TOKENS)
    return job


def token_bytes(model: LoadedModel, dtype: mx.Dtype, bits: int | None) -> float:
    """What is kept of a token, were the model's keys and values of another type."""
    cache = []
    for (heads, keys, _), (_, values, _) in model.layout.shapes:
        leaf = KVCache()
        leaf.keys = mx.zeros((1, heads, _BLOCK_TOKENS, keys), dtype)
        leaf.values = mx.zeros((1, heads, _BLOCK_TOKENS, values), dtype)
        cache.append(leaf)
    return BlockCodec(model.layout, bits).cut(cache, 0, 0, _BLOCK_TOKENS).nbytes / _BLOCK_TOKENS
