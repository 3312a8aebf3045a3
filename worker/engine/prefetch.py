"""Prompts that will come: while they wait elsewhere, what is kept of them comes into memory."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from shared.ids import ModelId
from worker.engine.kv_memory import KVMemory
from worker.engine.prefix_cache import PrefixCache
from worker.engine.prompt import PreparedSequence
from worker.kv_memory.block import Block, Kind, token_array
from worker.link.orders import Submit

_SHARE = 2
"""Of what blocks may take in memory these prompts get at most one part in so many: the rest is
for what is computed meanwhile, which would else be lost before it is written."""

_AT_ONCE = 4
"""So many files are asked for at a time: a prompt that has come waits for no more than those."""


@dataclass(frozen=True, slots=True, eq=False)
class _PrefetchedPrompt:
    """
    Attributes:
        wished: what shall be in memory when it comes.
        absent: what of that is yet to be read.
        nbytes: of all that is wished.
    """

    prepared: PreparedSequence
    cache: PrefixCache
    wished: list[Block]
    absent: deque[tuple[Block, Kind]]
    nbytes: int


class PrefetchedPrompts:
    """Belongs to the engine thread, but for `known`.

    Nothing here keeps a block where rows or limits need its room: it only leaves memory after
    those that nobody waits for.

    Args:
        find: what is kept of the texts of a model; None where it is not loaded.
    """

    def __init__(self, memory: KVMemory, find: Callable[[ModelId], PrefixCache | None]) -> None:
        self._memory = memory
        self._find = find
        self._prompts: dict[int, _PrefetchedPrompt] = {}
        self._reading: list[tuple[Block, Kind]] = []

    def known(self, order: Submit) -> PreparedSequence | None:
        """The prompt of an order, if that was foreseen; any thread may ask."""
        prefetched = self._prompts.get(order.sequence)
        if prefetched is None or prefetched.prepared.order != order:
            return None
        return prefetched.prepared

    def add(self, prepared: PreparedSequence) -> None:
        """Have the beginning of a prompt that is kept come into memory, as far as it has room."""
        cache = self._find(prepared.order.model)
        if cache is None:
            return
        self.forget(prepared.order.sequence)
        room = self._room_bytes - self._wished_bytes
        wished: list[Block] = []
        absent: deque[tuple[Block, Kind]] = deque()
        nbytes = 0
        for block, kind in cache.parts(cache.find(token_array(prepared.all_ids[:-1]))):
            if nbytes + block.part(kind).nbytes > room:
                break
            nbytes += block.part(kind).nbytes
            block.wishes += 1
            wished.append(block)
            if not block.in_memory(kind):
                absent.append((block, kind))
        prefetched = _PrefetchedPrompt(prepared, cache, wished, absent, nbytes)
        self._prompts[prepared.order.sequence] = prefetched

    def forget(self, sequence: int) -> None:
        """A prompt has come, or will not; unknown ones are ignored."""
        if (prefetched := self._prompts.pop(sequence, None)) is not None:
            for block in prefetched.wished:
                block.wishes -= 1

    def forget_all_of(self, model: ModelId | None = None) -> None:
        """Forget the prompts of a model, or all."""
        for sequence, prefetched in list(self._prompts.items()):
            if model in (None, prefetched.prepared.order.model):
                self.forget(sequence)

    def advance(self) -> None:
        """Have the next blocks read; those for whom there is no room any more are forgotten, the
        last one first."""
        while self._wished_bytes > self._room_bytes:
            self.forget(next(reversed(self._prompts)))
        there = [part for part in self._reading if not self._memory.is_reading(*part)]
        self._memory.figures.promoted += sum(block.in_memory(kind) for block, kind in there)
        self._reading = [part for part in self._reading if part not in there]
        for prefetched in self._prompts.values():
            while prefetched.absent and len(self._reading) < _AT_ONCE:
                self._read(*prefetched.absent.popleft(), prefetched.cache)

    def _read(self, block: Block, kind: Kind, cache: PrefixCache) -> None:
        wanted = block.has(kind) and not block.in_memory(kind)
        if wanted and not self._memory.is_reading(block, kind):
            self._memory.read(block, kind, cache.codec)
            self._reading.append((block, kind))

    @property
    def _room_bytes(self) -> int:
        return self._memory.limit_bytes // _SHARE

    @property
    def _wished_bytes(self) -> int:
        return sum(prefetched.nbytes for prefetched in self._prompts.values())
