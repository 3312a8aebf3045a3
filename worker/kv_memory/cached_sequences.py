"""Tracked sequences: how much of each one is cached in memory and on disk."""

from collections import OrderedDict
from dataclasses import dataclass

from worker.kv_memory.block import Block, BlockKey
from worker.kv_memory.block_tree import BlockTree, IsAvailable

_MAX_TRACKED = 1024


@dataclass(frozen=True, slots=True)
class SequenceCacheUsage:
    """How much of a sequence is cached.

    Attributes:
        tokens: length of its prefix that is cached in memory or on disk.
        memory_tokens: length of its prefix that is cached in memory.
        memory_bytes, disk_bytes: size of all its blocks.
        own_bytes: size of the blocks that no other sequence has, in memory and on disk.
    """

    tokens: int = 0
    memory_tokens: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    own_bytes: int = 0


NOTHING = SequenceCacheUsage()


class CachedSequences:
    """Sequences whose statistics are reported, by the key of their last block. Used by the engine
    thread.

    If there are too many, the least recently used ones are forgotten, except pinned ones.
    """

    def __init__(self, tree: BlockTree) -> None:
        self._tree = tree
        self._reported: OrderedDict[BlockKey, SequenceCacheUsage | None] = OrderedDict()
        self._pinned: dict[BlockKey, list[Block]] = {}
        self._due: list[BlockKey] = []

    def __len__(self) -> int:
        return len(self._reported)

    def track(self, end: BlockKey, *, pinned: bool = False) -> None:
        """Track a sequence, and report its statistics again: another session may have it now. A
        pinned one is evicted last."""
        self._reported[end] = None
        self._reported.move_to_end(end)
        self._unpin(end)
        if pinned:
            self._pin(end)
        for other in list(self._reported)[: max(0, len(self._reported) - _MAX_TRACKED)]:
            if other not in self._pinned:
                del self._reported[other]

    def untrack(self, end: BlockKey) -> None:
        """Stop tracking a sequence, and unpin it."""
        self._reported.pop(end, None)
        self._unpin(end)

    def is_pinned(self, end: BlockKey) -> bool:
        """Whether a sequence is pinned."""
        return end in self._pinned

    def changed(self, count: int) -> list[tuple[BlockKey, SequenceCacheUsage]]:
        """Check the next `count` sequences, in rotation; returns those whose statistics changed
        since they were last returned."""
        if not self._due:
            self._due = list(self._reported)
        checked, self._due = self._due[-count:], self._due[:-count]
        changed = []
        for end in checked:
            if end not in self._reported:
                continue
            if end in self._pinned and not self._pinned[end]:
                self._pin(end)  # its blocks were unknown when it was pinned
            block = self._tree.find(end)
            statistics = sequence_statistics(block) if block is not None else NOTHING
            if statistics != self._reported[end]:
                self._reported[end] = statistics
                changed.append((end, statistics))
        return changed

    def _pin(self, end: BlockKey) -> None:
        block = self._tree.find(end)
        path = block.path if block is not None else []
        self._pinned[end] = path
        for each in path:
            each.pins += 1

    def _unpin(self, end: BlockKey) -> None:
        for block in self._pinned.pop(end, []):
            block.pins -= 1


def exclusive_blocks(end: Block) -> list[Block]:
    """Return the blocks of a sequence that no other one has, last block first."""
    own = []
    block, after = end, 0
    while block.parent is not None and len(block.children) == after:
        own.append(block)
        block, after = block.parent, 1
    return own


def sequence_statistics(end: Block) -> SequenceCacheUsage:
    """Return the statistics of the sequence that ends with a block."""
    path = end.path
    own = len(exclusive_blocks(end))
    memory_bytes = disk_bytes = own_bytes = 0
    for left, block in zip(range(len(path), 0, -1), path, strict=True):
        for part in block.parts.values():
            in_memory = part.memory_bytes
            memory_bytes += in_memory
            disk_bytes += part.file_bytes
            if left <= own:
                own_bytes += in_memory + part.file_bytes
    return SequenceCacheUsage(
        tokens=_usable(path, Block.has),
        memory_tokens=_usable(path, Block.in_memory),
        memory_bytes=memory_bytes,
        disk_bytes=disk_bytes,
        own_bytes=own_bytes,
    )


def _usable(path: list[Block], is_available: IsAvailable) -> int:
    """Return the length of the available prefix of a path. It needs `kv` of all its blocks, if any
    block has `kv`, and `state` of its last block, if any block has `state`."""
    grows = any("kv" in block.parts for block in path)
    has_state = any("state" in block.parts for block in path)
    tokens = 0
    for block in path:
        if grows and not is_available(block, "kv"):
            break
        if not has_state or is_available(block, "state"):
            tokens = block.end
    return tokens
