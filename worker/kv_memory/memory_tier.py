"""The memory tier of blocks, with eviction of the least recently used."""

from collections import OrderedDict
from collections.abc import Callable

from worker.kv_memory.block import Block, BlockKey, InMemoryPayload, Kind


class MemoryTier:
    """The parts of blocks that are in memory. Used by one thread.

    Args:
        on_evicted: called with each part that was evicted from memory.

    Attributes:
        held_bytes: size of all payloads.
        evictions: number of evicted parts; dropped parts do not count.
    """

    def __init__(self, on_evicted: Callable[[Block, Kind], None]) -> None:
        self._on_evicted = on_evicted
        self._parts: OrderedDict[tuple[BlockKey, Kind], Block] = OrderedDict()
        self.held_bytes = 0
        self.evictions = 0

    def put(self, block: Block, kind: Kind, payload: InMemoryPayload) -> None:
        """Store a part, which must not be in memory."""
        block.part(kind).payload = payload
        self._parts[block.key, kind] = block
        self.held_bytes += payload.nbytes

    def touch(self, block: Block) -> None:
        """Mark a block as most recently used."""
        for kind in block.parts:
            if (block.key, kind) in self._parts:
                self._parts.move_to_end((block.key, kind))

    def drop(self, block: Block, kind: Kind) -> None:
        """Remove a part, if it is in memory."""
        if self._parts.pop((block.key, kind), None) is not None:
            part = block.parts[kind]
            assert part.payload is not None
            self.held_bytes -= part.payload.nbytes
            part.payload = None

    def shrink(self, limit_bytes: int) -> None:
        """Evict parts until no more than this is held. Blocks in use stay; blocks of queued prompts
        are evicted after others, and pinned blocks without a file last."""
        if self.held_bytes <= limit_bytes:
            return
        wished: list[tuple[Block, Kind]] = []
        pinned: list[tuple[Block, Kind]] = []
        for (_, kind), block in list(self._parts.items()):
            if self.held_bytes <= limit_bytes:
                return
            if block.pins and not block.parts[kind].file_bytes:
                pinned.append((block, kind))
            elif block.prefetches:
                wished.append((block, kind))
            elif not block.users:
                self._evict(block, kind)
        for block, kind in [*wished, *pinned]:
            if self.held_bytes <= limit_bytes:
                return
            if not block.users:
                self._evict(block, kind)

    def _evict(self, block: Block, kind: Kind) -> None:
        self.drop(block, kind)
        self.evictions += 1
        self._on_evicted(block, kind)
