"""Whole texts that somebody wants to hear of: how much of each is kept, and where."""

from collections import OrderedDict
from dataclasses import dataclass

from worker.kv_memory.block import Block, BlockKey
from worker.kv_memory.block_tree import BlockTree, There

_MOST = 1024


@dataclass(frozen=True, slots=True)
class SequenceStatistics:
    """
    Attributes:
        tokens: how many first ones can be had, from memory or disk.
        memory_tokens: how many first ones are in memory.
        memory_bytes, disk_bytes: of all its blocks.
        own_bytes: of those, in memory and on disk, that no other text has.
    """

    tokens: int = 0
    memory_tokens: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    own_bytes: int = 0


NOTHING = SequenceStatistics()


class TrackedSequences:
    """Texts by the name of the block with which they end. Belongs to the engine thread.

    The longest unused are followed no more when there are too many; pinned ones always are.
    """

    def __init__(self, tree: BlockTree) -> None:
        self._tree = tree
        self._told: OrderedDict[BlockKey, SequenceStatistics | None] = OrderedDict()
        self._pinned: dict[BlockKey, list[Block]] = {}
        self._due: list[BlockKey] = []

    def __len__(self) -> int:
        return len(self._told)

    def follow(self, end: BlockKey, *, pinned: bool = False) -> None:
        """Tell of a text from now on, and keep it before others where it is pinned."""
        self._told.setdefault(end, None)
        self._told.move_to_end(end)
        self._unpin(end)
        if pinned:
            self._pin(end)
        for other in list(self._told)[: max(0, len(self._told) - _MOST)]:
            if other not in self._pinned:
                del self._told[other]

    def forget(self, end: BlockKey) -> None:
        """Tell of a text no more; it is pinned no more."""
        self._told.pop(end, None)
        self._unpin(end)

    def pins(self, end: BlockKey) -> bool:
        """Whether a text is pinned."""
        return end in self._pinned

    def changed(self, most: int) -> list[tuple[BlockKey, SequenceStatistics]]:
        """Look at some of the texts, all in turn: those of which something else is to be told
        than was told before."""
        if not self._due:
            self._due = list(self._told)
        looked_at, self._due = self._due[-most:], self._due[:-most]
        changed = []
        for end in looked_at:
            if end not in self._told:
                continue
            if end in self._pinned and not self._pinned[end]:
                self._pin(end)  # its blocks were not known before
            block = self._tree.find(end)
            figures = sequence_statistics(block) if block is not None else NOTHING
            if figures != self._told[end]:
                self._told[end] = figures
                changed.append((end, figures))
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
    """The blocks that only this text has, the last one first."""
    own = []
    block, after = end, 0
    while block.parent is not None and len(block.children) == after:
        own.append(block)
        block, after = block.parent, 1
    return own


def sequence_statistics(end: Block) -> SequenceStatistics:
    """Of the text that ends with a block."""
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
    return SequenceStatistics(
        tokens=_usable(path, Block.has),
        memory_tokens=_usable(path, Block.in_memory),
        memory_bytes=memory_bytes,
        disk_bytes=disk_bytes,
        own_bytes=own_bytes,
    )


def _usable(path: list[Block], there: There) -> int:
    """How many first tokens of a text can be had: of layers that grow all blocks are needed, of
    others the state at the end."""
    grows = any("kv" in block.parts for block in path)
    has_state = any("state" in block.parts for block in path)
    tokens = 0
    for block in path:
        if grows and not there(block, "kv"):
            break
        if not has_state or there(block, "state"):
            tokens = block.end
    return tokens
