"""Prefetch: reads the cached blocks of prompts from disk while their requests wait for a slot."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from shared.ids import ModelId
from worker.engine.kv_block_store import KVBlockStore
from worker.engine.prefix_cache import PrefixCache
from worker.engine.prompt import PreparedSequence
from worker.kv_memory.block import Block, Kind, token_array
from worker.link.orders import SubmitSequence

_SHARE = 0.5
"""Prefetched prompts use at most this share of the blocks' memory: the rest is for newly computed
blocks, which would otherwise be evicted before they are written."""

_MAX_READS = 4
"""Concurrent reads: the prompt of a request that has a slot waits for no more than these."""


@dataclass(frozen=True, slots=True, eq=False)
class _PrefetchedPrompt:
    """
    Attributes:
        blocks: blocks that shall be in memory when the request gets a slot.
        unread: parts of these blocks that are still to be read.
        nbytes: of all parts of these blocks.
    """

    prepared: PreparedSequence
    cache: PrefixCache
    blocks: list[Block]
    unread: deque[tuple[Block, Kind]]
    nbytes: int


class PrefixPrefetcher:
    """Reads the cached blocks of waiting prompts from disk. The engine thread calls it, except for
    `find`.

    Prefetched blocks can still be evicted if rows or limits need the memory, but only after blocks
    that no request waits for.

    Args:
        find_cache: returns the prefix cache of a model; None if the model is not loaded.
    """

    def __init__(
        self, memory: KVBlockStore, find_cache: Callable[[ModelId], PrefixCache | None]
    ) -> None:
        self._memory = memory
        self._find_cache = find_cache
        self._prompts: dict[int, _PrefetchedPrompt] = {}
        self._reading: list[tuple[Block, Kind]] = []

    def find(self, order: SubmitSequence) -> PreparedSequence | None:
        """Return the prepared prompt of an order, if it was prefetched. Thread-safe."""
        prefetched = self._prompts.get(order.sequence)
        if prefetched is None or prefetched.prepared.order != order:
            return None
        return prefetched.prepared

    def add(self, prepared: PreparedSequence) -> None:
        """Start prefetching the cached prefix of a prompt, as far as it fits."""
        cache = self._find_cache(prepared.order.model)
        if cache is None:
            return
        self.forget(prepared.order.sequence)
        free_bytes = self._limit_bytes - self._prefetched_bytes
        blocks: list[Block] = []
        unread: deque[tuple[Block, Kind]] = deque()
        nbytes = 0
        for block, kind in cache.parts(cache.find(token_array(prepared.all_ids[:-1]))):
            if nbytes + block.part(kind).nbytes > free_bytes:
                break
            nbytes += block.part(kind).nbytes
            block.prefetches += 1
            blocks.append(block)
            if not block.in_memory(kind):
                unread.append((block, kind))
        prefetched = _PrefetchedPrompt(prepared, cache, blocks, unread, nbytes)
        self._prompts[prepared.order.sequence] = prefetched

    def forget(self, sequence: int) -> None:
        """Stop prefetching a prompt, because it has a slot or was cancelled; unknown sequences are
        ignored."""
        if (prefetched := self._prompts.pop(sequence, None)) is not None:
            for block in prefetched.blocks:
                block.prefetches -= 1

    def forget_all(self, model: ModelId | None = None) -> None:
        """Stop prefetching the prompts of a model, or all prompts."""
        for sequence, prefetched in list(self._prompts.items()):
            if model in (None, prefetched.prepared.order.model):
                self.forget(sequence)

    def advance(self) -> None:
        """Start the next reads. Prompts that no longer fit into the limit are forgotten, the last
        one first."""
        while self._prefetched_bytes > self._limit_bytes:
            self.forget(next(reversed(self._prompts)))
        finished = [part for part in self._reading if not self._memory.is_reading(*part)]
        self._memory.statistics.promoted += sum(block.in_memory(kind) for block, kind in finished)
        self._reading = [part for part in self._reading if part not in finished]
        for prefetched in self._prompts.values():
            while prefetched.unread and len(self._reading) < _MAX_READS:
                self._read(*prefetched.unread.popleft(), prefetched.cache)

    def _read(self, block: Block, kind: Kind, cache: PrefixCache) -> None:
        on_disk_only = block.has(kind) and not block.in_memory(kind)
        if on_disk_only and not self._memory.is_reading(block, kind):
            self._memory.read(block, kind, cache.codec)
            self._reading.append((block, kind))

    @property
    def _limit_bytes(self) -> int:
        return int(self._memory.limit_bytes * _SHARE)

    @property
    def _prefetched_bytes(self) -> int:
        return sum(prefetched.nbytes for prefetched in self._prompts.values())
