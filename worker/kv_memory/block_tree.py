"""All blocks that are kept, as a tree of texts; and how much of a new text is among them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from worker.kv_memory.block import Block, BlockKey, Kind, TokenIds, block_key


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """Which layers a model has.

    Attributes:
        grows: some keep keys and values of every token.
        has_state: some keep a state that cannot be cut, so that a text can only be taken up at the
            end of a block whose state is kept.
    """

    grows: bool
    has_state: bool


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The beginning of a text that is kept.

    Attributes:
        blocks: of it, in order; of the last maybe only a part is used.
        tokens: how many it has.
    """

    blocks: Sequence[Block] = ()
    tokens: int = 0


NOTHING = PrefixMatch()
There = Callable[[Block, Kind], bool]
"""Whether a part of a block can be had."""


class BlockTree:
    """Blocks by their names. Belongs to one thread.

    Args:
        block_tokens: of every block but the last of a text.
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
        """Where the texts of a model begin; it stays."""
        root = self._orphans_of(key)
        root.holders += 1
        return root

    def _orphans_of(self, key: BlockKey) -> Block:
        """What stands for a block of which only those after it are known."""
        if key not in self._roots:
            self._roots[key] = Block(key, None, 0, 0)
        return self._roots[key]

    def find(self, key: BlockKey) -> Block | None:
        return self._blocks.get(key)

    def get(self, parent: Block, tokens: TokenIds) -> Block:
        """The block with these tokens after `parent`; a new one where there is none."""
        key = block_key(parent.key, tokens)
        block = self._blocks.get(key)
        if block is None:
            block = self.add(key, parent, len(tokens))
        if block.tokens is None:
            block.tokens = tokens
        return block

    def add(self, key: BlockKey, parent: Block | BlockKey, count: int) -> Block:
        """A block of which only the name is known; there must be none of that name."""
        if not isinstance(parent, Block):
            parent = self._blocks.get(parent) or self._orphans_of(parent)
        block = Block(key, parent, parent.end, count)
        parent.children[key] = block
        self._blocks[key] = block
        if (orphans := self._roots.pop(key, None)) is not None:
            block.children = orphans.children
            for child in block.children.values():
                child.parent = block
            _move(block)
        return block

    def prune(self, block: Block) -> None:
        """Forget a block of which nothing is left, and those before it that were there for it."""
        while (
            not block.children
            and not (block.holders or block.users)
            and not any(part.there for part in block.parts.values())
        ):
            parent = block.parent
            if parent is None:
                self._roots.pop(block.key, None)
                return
            if self._blocks.pop(block.key, None) is not None:
                del parent.children[block.key]
            block = parent

    def match(self, root: Block, ids: TokenIds, layout: LayerLayout, there: There) -> PrefixMatch:
        """The longest beginning of a text that can be had."""
        if layout.has_state:
            return self._match_state(root, ids, layout, there)
        blocks: list[Block] = []
        at, done = root, 0
        while (block := self._next(at, ids, done)) is not None and there(block, "kv"):
            blocks.append(block)
            at, done = block, block.end
        part, common = _most_common(at, ids[done : done + self.block_tokens], there)
        if part is not None:
            blocks.append(part)
        return PrefixMatch(blocks, done + common) if blocks else NOTHING

    def _match_state(
        self, root: Block, ids: TokenIds, layout: LayerLayout, there: There
    ) -> PrefixMatch:
        """Texts are taken up at the end of a block whose state can be had."""
        if not layout.grows:
            self._link(root, ids)
        best = NOTHING
        blocks: list[Block] = []
        at: Block | None = root
        while at is not None:
            done = at.end
            for block in [*self._short(at), self._next(at, ids, done)]:
                if (
                    block is not None
                    and best.tokens < block.end <= len(ids)
                    and _is_next(block, ids[done : block.end])
                    and (there(block, "kv") or not layout.grows)
                    and there(block, "state")
                ):
                    best = PrefixMatch([*blocks, block], block.end)
            at = self._next(at, ids, done)
            if at is not None and layout.grows and not there(at, "kv"):
                break
            if at is not None:
                blocks.append(at)
        return best

    def _link(self, root: Block, ids: TokenIds) -> None:
        """Put blocks in their place of which only later ones are known: where no layer grows,
        nothing is kept of most."""
        at, known, key = root, 0, root.key
        size = self.block_tokens
        for done in range(0, len(ids) - size + 1, size):
            key = block_key(key, ids[done : done + size])
            if key in self._blocks or key in self._roots:
                known = done + size
        for done in range(0, known, size):
            at = self.get(at, ids[done : done + size])

    def _short(self, at: Block) -> list[Block]:
        return [block for block in at.children.values() if block.count < self.block_tokens]

    def _next(self, at: Block, ids: TokenIds, done: int) -> Block | None:
        """The whole block with which a text goes on."""
        if len(ids) - done < self.block_tokens:
            return None
        return at.children.get(block_key(at.key, ids[done : done + self.block_tokens]))


def _move(block: Block) -> None:
    """Have all after a block start where it ends."""
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


def _most_common(at: Block, rest: TokenIds, there: There) -> tuple[Block | None, int]:
    """Of the blocks that follow, the one that begins most like the rest of a text; and how many
    tokens they have in common."""
    best, most = None, 0
    for block in at.children.values():
        if block.tokens is None:
            whole = block.count <= len(rest) and _is_next(block, rest[: block.count])
            common = block.count if whole else 0
        else:
            common = common_length(block.tokens, rest)
        if common > most and there(block, "kv"):
            best, most = block, common
    return best, most


def common_length(one: TokenIds, other: TokenIds) -> int:
    """How many tokens two texts have in common at their beginnings."""
    limit = min(len(one), len(other))
    if limit == 0 or one[0] != other[0]:
        return 0
    if one[:limit] == other[:limit]:
        return limit
    low, high = 0, limit - 1  # the first `low` are equal, and not the first `high + 1`
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
