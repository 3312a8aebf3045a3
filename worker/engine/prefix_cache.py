"""What is kept of the texts of one model: found for new prompts, filed while texts grow."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import mlx.core as mx

from worker.engine.cache_blocks import Arrays, BlockCodec, RowStart
from worker.engine.caches import Cache, CacheLayout
from worker.engine.kv_memory import KVMemory
from worker.engine.snapshots import SnapshotLengths
from worker.kv_memory.block import Block, Kind, TokenIds, block_key, root_key, token_array
from worker.kv_memory.block_file import FORMAT
from worker.kv_memory.block_tree import LayerLayout, PrefixMatch, common_length

_MOST_SNAPSHOT_BLOCKS = 8
"""A state is kept at least every so many blocks, unless it grows."""


class PrefixCache:
    """Belongs to the engine thread.

    Args:
        fingerprint: of the model's weights; what is kept of another one is of no use.

    Attributes:
        enabled: whether anything is kept.
        snapshots: at which lengths the state of a text is.
    """

    def __init__(self, memory: KVMemory, layout: CacheLayout, fingerprint: str) -> None:
        self.memory = memory
        settings = memory.settings
        self.block_tokens = settings.block_tokens
        names = (
            FORMAT, version("mlx-lm"), fingerprint, layout.description, settings.block_tokens,
            settings.bits,
        )  # fmt: skip
        self.root = memory.tree.root(root_key(" ".join(map(str, names))))
        self.codec = BlockCodec(layout, memory.settings.bits)
        self.layout = LayerLayout(grows=bool(layout.shapes), has_state=not layout.allows_padding)
        self.enabled = settings.enabled and layout.allows_keeping
        per_block = (layout.token_bytes - layout.whole_token_bytes) * self.block_tokens
        most = _MOST_SNAPSHOT_BLOCKS
        blocks = min(most, max(1, layout.row_bytes // per_block)) if per_block else most
        self.snapshots = SnapshotLengths(
            blocks * self.block_tokens, doubling=layout.whole_token_bytes > 0
        )

    def close(self) -> None:
        self.root.holders -= 1

    # New prompts.

    def find(self, ids: TokenIds, *, in_memory: bool = False) -> PrefixMatch:
        """The beginning of a text that is kept, anywhere or in memory."""
        if not self.enabled:
            return PrefixMatch()
        return self.memory.tree.match(
            self.root, ids, self.layout, Block.in_memory if in_memory else Block.has
        )

    def parts(self, match: PrefixMatch) -> list[tuple[Block, Kind]]:
        """What of the blocks that were found is needed to begin with them."""
        parts: list[tuple[Block, Kind]] = []
        if self.layout.grows:
            parts += [(block, "kv") for block in match.blocks]
        if self.layout.has_state and match.blocks:
            parts.append((match.blocks[-1], "state"))
        return parts

    def recall(self, ids: TokenIds) -> "PrefixRestore":
        """Have the beginning of a prompt that is kept come into memory, and stay there."""
        return PrefixRestore(self, self.find(ids))

    def kept_of(self, other: TokenIds, ids: TokenIds) -> int:
        """How many first tokens of a text can be had once another one is kept."""
        if not self.enabled:
            return 0
        common = common_length(other, ids)
        if not self.layout.has_state or common == len(other):
            return common
        return self.snapshots.last(common)

    def until_snapshot(self, done: int) -> int:
        """How many tokens may be computed at once after `done` others."""
        if not self.enabled or not self.layout.has_state:
            return 2**31
        return self.snapshots.next(done) - done

    def note(self, done: int, tokens: Sequence[int]) -> None:
        """Of prompts of so many tokens the first `done` were there."""
        figures, rows = self.memory.figures, len(tokens)
        figures.prompt_tokens += sum(tokens)
        figures.hits += rows if done else 0
        figures.misses += 0 if done else rows
        figures.saved_tokens += rows * done

    def restored(self, matches: Sequence[PrefixMatch], done: int, tokens: int) -> Cache:
        """The cache of rows that begin with the first `done` tokens of what was found for each,
        with room for `tokens` of each."""
        began_at = time.perf_counter()
        cache = self.codec.restored([self._start(match) for match in matches], done, tokens)
        for match in matches:
            if match.blocks:
                self.memory.touch(match.blocks[-1])
        figures = self.memory.figures
        figures.restores += 1
        figures.restore_s += time.perf_counter() - began_at
        return cache

    def _start(self, match: PrefixMatch) -> RowStart:
        blocks = [_arrays(block, "kv") for block in match.blocks] if self.layout.grows else []
        state = None
        if self.layout.has_state and match.blocks:
            state = _arrays(match.blocks[-1], "state")
        return RowStart(blocks, state)

    # Texts that grow.

    def recorder(
        self, sequence: int, match: PrefixMatch, *, on_disk: bool = False
    ) -> "PrefixRecorder | None":
        """The trail of a sequence that begins with what was found; None where nothing is kept.

        Args:
            on_disk: its last tokens, too few for a block, are kept on disk, too.
        """
        if not self.enabled:
            return None
        whole = [b for b in match.blocks if b.count == self.block_tokens and b.end <= match.tokens]
        return PrefixRecorder(self, sequence, whole[-1] if whole else self.root, on_disk=on_disk)


class PrefixRestore:
    """What is kept of a prompt, while the prompt waits for its turn.

    Attributes:
        tokens: how many of it are kept.
    """

    def __init__(self, cache: PrefixCache, match: PrefixMatch) -> None:
        self._cache = cache
        self.tokens = match.tokens
        self._held = list(match.blocks)
        for block in match.blocks:
            block.users += 1
        self._awaited = [part for part in cache.parts(match) if not part[0].in_memory(part[1])]
        for block, kind in self._awaited:
            cache.memory.read(block, kind, cache.codec)

    @property
    def ready(self) -> bool:
        """Whether all of it is in memory, or will not come."""
        self._awaited = [
            (block, kind)
            for block, kind in self._awaited
            if not block.in_memory(kind) and block.has(kind)
        ]
        return not self._awaited

    def close(self) -> None:
        """Let it go: the prompt has begun, or never will."""
        for block in self._held:
            block.users -= 1
        self._held = []


@dataclass(frozen=True, slots=True)
class _Cut:
    """Of the tokens from `start` to `end`, not filed yet because not all of them are known."""

    start: int
    end: int
    kv: Arrays | None
    state: Arrays | None


class PrefixRecorder:
    """How far a text is kept, and what was cut from the cache of its row but is not filed yet."""

    def __init__(self, cache: PrefixCache, sequence: int, at: Block, *, on_disk: bool) -> None:
        self._cache = cache
        self._sequence = sequence
        self._at = self._last = at
        at.holders += 1
        self._on_disk = on_disk
        self._cut_to = at.end
        self._cuts: list[_Cut] = []

    @property
    def next_cut(self) -> int:
        """The length of the text at which `cut` has something to do."""
        return self._cut_to + self._cache.block_tokens

    def cut(self, layers: Iterable[Any], row: int, length: int, ids: Sequence[int]) -> None:
        """Take all blocks that are full from the cache of a row, and file them.

        Args:
            length: tokens of the text in the cache.
            ids: of the text, as far as they are known.
        """
        while length >= self.next_cut:
            if not self._known(ids):
                self._take(layers, row, self._cut_to, self.next_cut, length)
                self._cut_to = self.next_cut
                self.file(ids)

    def cut_rest(self, layers: Iterable[Any], row: int, length: int) -> None:
        """Take what is left, less than a block, to be filed; of a state in any case."""
        if length > self._cut_to or (length > 0 and self._cache.layout.has_state):
            self._take(layers, row, self._cut_to, length, length)

    def _known(self, ids: Sequence[int]) -> bool:
        """Go on by a block, if that is kept already."""
        end = self.next_cut
        if self._cuts or end > len(ids) or self._cache.layout.has_state:
            return False
        tokens = token_array(ids[self._cut_to : end])
        block = self._cache.memory.tree.find(block_key(self._at.key, tokens))
        if block is None or not block.has("kv"):
            return False
        block.tokens = tokens
        self._cache.memory.touch(block)
        self._go_on(block)
        self._cut_to = end
        return True

    def _go_on(self, block: Block) -> None:
        block.holders += 1
        self._at.holders -= 1
        self._at = self._last = block

    @property
    def filed(self) -> bool:
        """Whether all that was cut is filed."""
        return not self._cuts

    def file(self, ids: Sequence[int]) -> None:
        """File what was cut, as far as its tokens are known."""
        while self._cuts and self._cuts[0].end <= len(ids):
            cut = self._cuts.pop(0)
            tokens = token_array(ids[cut.start : cut.end])
            self._file(tokens, cut)

    def close(self) -> None:
        """The text grows no more."""
        self._cache.memory.ended(self._sequence, self._last)
        self._at.holders -= 1
        self._cache.memory.tree.prune(self._at)

    def _take(self, layers: Iterable[Any], row: int, start: int, end: int, length: int) -> None:
        cache = self._cache
        assert 0 <= end - start <= cache.block_tokens
        kv = state = None
        if cache.layout.grows and end > start:
            kv = cache.codec.cut(layers, row, start, end)
        rest = end - start < cache.block_tokens
        if cache.layout.has_state and end == length and (rest or cache.snapshots.last(end) == end):
            state = cache.codec.snapshot(layers, row)
        for arrays in (kv, state):
            if arrays is not None:
                mx.async_eval(arrays.unevaluated)  # before the caches are written to again
        self._cuts.append(_Cut(start, end, kv, state))

    def _file(self, tokens: TokenIds, cut: _Cut) -> None:
        memory = self._cache.memory
        block = memory.tree.get(self._at, tokens) if tokens else self._at
        whole = len(tokens) == self._cache.block_tokens
        block.holders += 1
        kept: list[tuple[Kind, Arrays | None]] = [("kv", cut.kv), ("state", cut.state)]
        for kind, arrays in kept:
            if arrays is not None:
                memory.keep(block, kind, arrays, self._cache.codec, on_disk=whole or self._on_disk)
        memory.touch(block)
        if not self._cache.layout.has_state:
            self._supersede(block, tokens)
        self._last = block
        if whole:
            self._go_on(block)
        block.holders -= 1
        memory.tree.prune(block)

    def _supersede(self, block: Block, tokens: TokenIds) -> None:
        """Forget shorter blocks that this one begins with."""
        for other in list(self._at.children.values()):
            shorter = other.count < block.count and other.tokens is not None
            if shorter and other.tokens == tokens[: other.count]:
                self._cache.memory.drop(other)


def _arrays(block: Block, kind: Kind) -> Arrays:
    payload = block.part(kind).payload
    assert isinstance(payload, Arrays)
    return payload
