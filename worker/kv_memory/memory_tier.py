"""What of the blocks is in memory: least recently used goes first, when its bytes are needed."""

from collections import OrderedDict
from collections.abc import Callable

from worker.kv_memory.block import Block, BlockKey, BlockPayload, Kind


class MemoryTier:
    """Belongs to one thread.

    Args:
        on_evicted: told of a part that has left memory, whatever is left of its block.

    Attributes:
        held_bytes: of all payloads.
        evictions: parts that went although nobody asked for that.
    """

    def __init__(self, on_evicted: Callable[[Block, Kind], None]) -> None:
        self._on_evicted = on_evicted
        self._parts: OrderedDict[tuple[BlockKey, Kind], Block] = OrderedDict()
        self.held_bytes = 0
        self.evictions = 0

    def put(self, block: Block, kind: Kind, payload: BlockPayload) -> None:
        """Keep a part that is not in memory."""
        block.part(kind).payload = payload
        self._parts[block.key, kind] = block
        self.held_bytes += payload.nbytes

    def touch(self, block: Block) -> None:
        """It was used just now."""
        for kind in block.parts:
            if (block.key, kind) in self._parts:
                self._parts.move_to_end((block.key, kind))

    def drop(self, block: Block, kind: Kind) -> None:
        """Let a part go, if it is in memory."""
        if self._parts.pop((block.key, kind), None) is not None:
            part = block.parts[kind]
            assert part.payload is not None
            self.held_bytes -= part.payload.nbytes
            part.payload = None

    def shrink(self, limit_bytes: int) -> None:
        """Have parts go until no more than that is held: who is in use stays, what is wished for
        goes late, and what is pinned and on no disk goes last."""
        if self.held_bytes <= limit_bytes:
            return
        wished: list[tuple[Block, Kind]] = []
        pinned: list[tuple[Block, Kind]] = []
        for (_, kind), block in list(self._parts.items()):
            if self.held_bytes <= limit_bytes:
                return
            if block.pins and not block.parts[kind].file_bytes:
                pinned.append((block, kind))
            elif block.wishes:
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
