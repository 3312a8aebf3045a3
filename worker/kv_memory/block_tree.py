"""The prefix tree of all cached blocks, which finds the longest cached prefix of a sequence."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from worker.kv_memory.block import Block, BlockKey, Kind, TokenIds, block_key


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """The kinds of layers of a model.

    Attributes:
        grows: some layers cache keys and values of every token.
        has_state: some layers have a recurrent state, so that a sequence can continue only at the
            end of a block whose state is cached.
    """

    grows: bool
    has_state: bool


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """A cached prefix of a sequence.

    Attributes:
        blocks: its blocks in order; of the last one perhaps only a part is used.
        tokens: length of the prefix.
    """

    blocks: Sequence[Block] = ()
    tokens: int = 0


NO_MATCH = PrefixMatch()
IsAvailable = Callable[[Block, Kind], bool]
"""Whether a part of a block is available."""


class BlockTree:
    """Blocks by key. Used by one thread.

    Args:
        block_tokens: number of tokens of each block but the last one of a sequence.
    """

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._roots: dict[BlockKey, Block] = {}
        self._blocks: dict[BlockKey, Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks.values())

    def root(self, key: BlockKey) -> Block:
        """Return the root of a model's sequences, which is never pruned."""
        root = self._placeholder(key)
        root.holders += 1
        return root

    def _placeholder(self, key: BlockKey) -> Block:
        """Return a root that stands for an unknown block whose children are known."""
        if key not in self._roots:
            self._roots[key] = Block(key, None, 0, 0)
        return self._roots[key]

    def find(self, key: BlockKey) -> Block | None:
        return self._blocks.get(key)

    def get(self, parent: Block, tokens: TokenIds) -> Block:
        """Return the block with these tokens after `parent`; adds it if it is missing."""
        key = block_key(parent.key, tokens)
        block = self._blocks.get(key)
        if block is None:
            block = self.add(key, parent, len(tokens))
        if block.tokens is None:
            block.tokens = tokens
        return block

    def add(self, key: BlockKey, parent: Block | BlockKey, count: int) -> Block:
        """Add a block without tokens. The key must be new."""
        if not isinstance(parent, Block):
            parent = self._blocks.get(parent) or self._placeholder(parent)
        block = Block(key, parent, parent.end, count)
        parent.children[key] = block
        self._blocks[key] = block
        if (orphans := self._roots.pop(key, None)) is not None:
            block.children = orphans.children
            for child in block.children.values():
                child.parent = block
            _renumber(block)
        return block

    def prune(self, block: Block) -> None:
        """Remove a block without parts, and its ancestors that are not needed any more."""
        while (
            not block.children
            and not (block.holders or block.users)
            and not any(part.exists for part in block.parts.values())
        ):
            parent = block.parent
            if parent is None:
                self._roots.pop(block.key, None)
                return
            if self._blocks.pop(block.key, None) is not None:
                del parent.children[block.key]
            block = parent

    def match(
        self, root: Block, ids: TokenIds, layout: LayerKinds, is_available: IsAvailable
    ) -> PrefixMatch:
        """Return the longest available prefix of a sequence."""
        if layout.has_state:
            return self._match_state(root, ids, layout, is_available)
        blocks: list[Block] = []
        at, done = root, 0
        while (block := self._next(at, ids, done)) is not None and is_available(block, "kv"):
            blocks.append(block)
            at, done = block, block.end
        part, common = _longest_common(at, ids[done : done + self.block_tokens], is_available)
        if part is not None:
            blocks.append(part)
        return PrefixMatch(blocks, done + common) if blocks else NO_MATCH

    def _match_state(
        self, root: Block, ids: TokenIds, layout: LayerKinds, is_available: IsAvailable
    ) -> PrefixMatch:
        """Return the longest prefix that ends with a block whose state is available."""
        if not layout.grows:
            self._connect(root, ids)
        best = NO_MATCH
        blocks: list[Block] = []
        at: Block | None = root
        while at is not None:
            done = at.end
            for block in [*self._partial_children(at), self._next(at, ids, done)]:
                if (
                    block is not None
                    and best.tokens < block.end <= len(ids)
                    and _is_next(block, ids[done : block.end])
                    and (is_available(block, "kv") or not layout.grows)
                    and is_available(block, "state")
                ):
                    best = PrefixMatch([*blocks, block], block.end)
            at = self._next(at, ids, done)
            if at is not None and layout.grows and not is_available(at, "kv"):
                break
            if at is not None:
                blocks.append(at)
        return best

    def _connect(self, root: Block, ids: TokenIds) -> None:
        """Add the missing blocks before known ones of this sequence: if no layer grows, most
        blocks have no parts, and so are not in the tree."""
        at, known, key = root, 0, root.key
        size = self.block_tokens
        for done in range(0, len(ids) - size + 1, size):
            key = block_key(key, ids[done : done + size])
            if key in self._blocks or key in self._roots:
                known = done + size
        for done in range(0, known, size):
            at = self.get(at, ids[done : done + size])

    def _partial_children(self, at: Block) -> list[Block]:
        return [block for block in at.children.values() if block.count < self.block_tokens]

    def _next(self, at: Block, ids: TokenIds, done: int) -> Block | None:
        """Return the full block with which a sequence continues after `done` tokens."""
        if len(ids) - done < self.block_tokens:
            return None
        return at.children.get(block_key(at.key, ids[done : done + self.block_tokens]))


def _renumber(block: Block) -> None:
    """Update the start of all descendants of a block."""
    moved = [block]
    while moved:
        before = moved.pop()
        for child in before.children.values():
            child.start = before.end
            moved.append(child)


def _is_next(block: Block, tokens: TokenIds) -> bool:
    assert block.parent is not None
    if block.tokens is not None:
        return block.tokens == tokens
    return block_key(block.parent.key, tokens) == block.key


def _longest_common(
    at: Block, rest: TokenIds, is_available: IsAvailable
) -> tuple[Block | None, int]:
    """Return the child with the longest common prefix with the rest of a sequence, and the length
    of that prefix."""
    best, most = None, 0
    for block in at.children.values():
        if block.tokens is None:
            whole = block.count <= len(rest) and _is_next(block, rest[: block.count])
            common = block.count if whole else 0
        else:
            common = common_length(block.tokens, rest)
        if common > most and is_available(block, "kv"):
            best, most = block, common
    return best, most


def common_length(one: TokenIds, other: TokenIds) -> int:
    """Return the length of the common prefix of two sequences."""
    limit = min(len(one), len(other))
    if limit == 0 or one[0] != other[0]:
        return 0
    if one[:limit] == other[:limit]:
        return limit
    low, high = 0, limit - 1  # the first `low` are equal, the first `high + 1` are not
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
