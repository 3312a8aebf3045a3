"""The prefix cache of one model: finds cached prefixes of new prompts, and records the blocks of
sequences while they grow."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import mlx.core as mx

from worker.engine.cache_blocks import BlockArrays, BlockCodec, RowPrefix
from worker.engine.caches import Cache, CacheLayout
from worker.engine.kv_block_store import KVBlockStore
from worker.kv_memory.block import Block, Kind, TokenIds, block_key, root_key, token_array
from worker.kv_memory.block_file import FORMAT
from worker.kv_memory.block_tree import LayerKinds, PrefixMatch, common_length


@dataclass(frozen=True, slots=True)
class SnapshotLengths:
    """Multiples of a step. A state that grows with the sequence is stored at the step times powers
    of two instead, so that all states of a sequence take at most twice the size of the last one.

    Attributes:
        step_tokens: the first length.
        doubling: whether each length is twice the one before.
    """

    step_tokens: int
    doubling: bool = False

    def last(self, tokens: int) -> int:
        """Return the last of these lengths within a sequence of `tokens` tokens; 0 for none."""
        steps = tokens // self.step_tokens
        if self.doubling and steps:
            steps = 1 << (steps.bit_length() - 1)
        return steps * self.step_tokens

    def next(self, tokens: int) -> int:
        """Return the first of these lengths that is greater than `tokens`."""
        last = self.last(tokens)
        return max(self.step_tokens, 2 * last) if self.doubling else last + self.step_tokens


_MAX_SNAPSHOT_BLOCKS = 8
"""A state is stored at least every 8 blocks, unless its size grows with the sequence."""


class PrefixCache:
    """Belongs to the engine thread.

    Args:
        fingerprint: of the model's weights; blocks of other weights are never matched.

    Attributes:
        enabled: whether anything is cached.
        snapshots: the lengths at which the state of a sequence is stored.
    """

    def __init__(self, memory: KVBlockStore, layout: CacheLayout, fingerprint: str) -> None:
        self.memory = memory
        settings = memory.settings
        self.block_tokens = settings.block_tokens
        names = (
            FORMAT, version("mlx-lm"), fingerprint, layout.description, settings.block_tokens,
            settings.bits,
        )  # fmt: skip
        self.root = memory.tree.root(root_key(" ".join(map(str, names))))
        self.codec = BlockCodec(layout, memory.settings.bits)
        self.layout = LayerKinds(grows=bool(layout.shapes), has_state=not layout.allows_padding)
        self.enabled = settings.enabled and layout.allows_caching
        per_block = (layout.token_bytes - layout.opaque_token_bytes) * self.block_tokens
        limit = _MAX_SNAPSHOT_BLOCKS
        blocks = min(limit, max(1, layout.row_bytes // per_block)) if per_block else limit
        self.snapshots = SnapshotLengths(
            blocks * self.block_tokens, doubling=layout.opaque_token_bytes > 0
        )

    def close(self) -> None:
        self.root.holders -= 1

    # New prompts.

    def find(self, ids: TokenIds, *, in_memory: bool = False) -> PrefixMatch:
        """Find the longest cached prefix of a prompt, in memory or on disk, or in memory only."""
        if not self.enabled:
            return PrefixMatch()
        return self.memory.tree.match(
            self.root, ids, self.layout, Block.in_memory if in_memory else Block.has
        )

    def parts(self, match: PrefixMatch) -> list[tuple[Block, Kind]]:
        """Return the parts of the matched blocks that are needed to restore the prefix."""
        parts: list[tuple[Block, Kind]] = []
        if self.layout.grows:
            parts += [(block, "kv") for block in match.blocks]
        if self.layout.has_state and match.blocks:
            parts.append((match.blocks[-1], "state"))
        return parts

    def restore(self, ids: TokenIds) -> "PrefixRestore":
        """Start reading the cached prefix of a prompt into memory, and hold it there."""
        return PrefixRestore(self, self.find(ids))

    def cached_after(self, other: TokenIds, ids: TokenIds) -> int:
        """Return how many first tokens of `ids` can be restored once `other` is cached."""
        if not self.enabled:
            return 0
        common = common_length(other, ids)
        if not self.layout.has_state or common == len(other):
            return common
        return self.snapshots.last(common)

    def until_snapshot(self, done: int) -> int:
        """Return how many tokens may be computed at once after `done` others, so that the pass ends
        at the next snapshot."""
        if not self.enabled or not self.layout.has_state:
            return 2**31
        return self.snapshots.next(done) - done

    def count_prompts(self, done: int, tokens: Sequence[int]) -> None:
        """Count hits and misses of prompts of which the first `done` tokens were cached.

        Args:
            tokens: the number of tokens of each prompt.
        """
        statistics, rows = self.memory.statistics, len(tokens)
        statistics.prompt_tokens += sum(tokens)
        statistics.hits += rows if done else 0
        statistics.misses += 0 if done else rows
        statistics.saved_tokens += rows * done

    def restored(self, matches: Sequence[PrefixMatch], done: int, tokens: int) -> Cache:
        """Build the cache of rows from the first `done` tokens of their matches, with capacity for
        `tokens` each."""
        began_at = time.perf_counter()
        cache = self.codec.restored([self._start(match) for match in matches], done, tokens)
        for match in matches:
            if match.blocks:
                self.memory.touch(match.blocks[-1])
        statistics = self.memory.statistics
        statistics.restores += 1
        statistics.restore_s += time.perf_counter() - began_at
        return cache

    def _start(self, match: PrefixMatch) -> RowPrefix:
        blocks = [_arrays(block, "kv") for block in match.blocks] if self.layout.grows else []
        state = None
        if self.layout.has_state and match.blocks:
            state = _arrays(match.blocks[-1], "state")
        return RowPrefix(blocks, state)

    # Growing sequences.

    def recorder(
        self, sequence: int, match: PrefixMatch, *, on_disk: bool = False
    ) -> "PrefixRecorder | None":
        """Return a recorder for a sequence that begins with the match; None if nothing is cached.

        Args:
            on_disk: the last, partial block is stored on disk, too.
        """
        if not self.enabled:
            return None
        whole = [b for b in match.blocks if b.count == self.block_tokens and b.end <= match.tokens]
        return PrefixRecorder(self, sequence, whole[-1] if whole else self.root, on_disk=on_disk)


class PrefixRestore:
    """The cached prefix of a waiting prompt; its blocks are held in memory.

    Attributes:
        tokens: the length of the prefix.
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
        """Whether all parts are in memory, or cannot be read."""
        self._awaited = [
            (block, kind)
            for block, kind in self._awaited
            if not block.in_memory(kind) and block.has(kind)
        ]
        return not self._awaited

    def close(self) -> None:
        """Release the blocks, because the prompt has begun or was dropped."""
        for block in self._held:
            block.users -= 1
        self._held = []


@dataclass(frozen=True, slots=True)
class _Cut:
    """Arrays of the tokens from `start` to `end`, not stored yet because some token ids are not
    read from the device."""

    start: int
    end: int
    kv: BlockArrays | None
    state: BlockArrays | None


class PrefixRecorder:
    """Stores the blocks of one sequence while it grows. Arrays are cut from the row's cache first
    and stored as soon as their token ids are known."""

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
        """The length of the sequence at which the next block is full."""
        return self._cut_to + self._cache.block_tokens

    def cut(self, layers: Iterable[Any], row: int, length: int, ids: Sequence[int]) -> None:
        """Cut all full blocks from the cache of a row, and store those whose tokens are known.

        Args:
            length: the tokens of the row in the cache.
            ids: the known token ids of the sequence.
        """
        while length >= self.next_cut:
            if not self._skip_cached(ids):
                self._cut(layers, row, self._cut_to, self.next_cut, length)
                self._cut_to = self.next_cut
                self.store(ids)

    def cut_rest(self, layers: Iterable[Any], row: int, length: int) -> None:
        """Cut the rest, less than a block; a state is copied even if no tokens are left."""
        if length > self._cut_to or (length > 0 and self._cache.layout.has_state):
            self._cut(layers, row, self._cut_to, length, length)

    def _skip_cached(self, ids: Sequence[int]) -> bool:
        """Advance by a block if the block is cached already; else return False."""
        end = self.next_cut
        if self._cuts or end > len(ids) or self._cache.layout.has_state:
            return False
        tokens = token_array(ids[self._cut_to : end])
        block = self._cache.memory.tree.find(block_key(self._at.key, tokens))
        if block is None or not block.has("kv"):
            return False
        block.tokens = tokens
        self._cache.memory.touch(block)
        self._advance_to(block)
        self._cut_to = end
        return True

    def _advance_to(self, block: Block) -> None:
        block.holders += 1
        self._at.holders -= 1
        self._at = self._last = block

    @property
    def is_stored(self) -> bool:
        """Whether all cut arrays are stored."""
        return not self._cuts

    def store(self, ids: Sequence[int]) -> None:
        """Store the cut arrays whose tokens are known."""
        while self._cuts and self._cuts[0].end <= len(ids):
            cut = self._cuts.pop(0)
            tokens = token_array(ids[cut.start : cut.end])
            self._store(tokens, cut)

    def close(self) -> None:
        """Finish recording; the sequence grows no more."""
        self._cache.memory.record_end(self._sequence, self._last)
        self._at.holders -= 1
        self._cache.memory.tree.prune(self._at)

    def _cut(self, layers: Iterable[Any], row: int, start: int, end: int, length: int) -> None:
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
                mx.async_eval(arrays.unevaluated)  # before the next write to the caches
        self._cuts.append(_Cut(start, end, kv, state))

    def _store(self, tokens: TokenIds, cut: _Cut) -> None:
        memory = self._cache.memory
        block = memory.tree.get(self._at, tokens) if tokens else self._at
        whole = len(tokens) == self._cache.block_tokens
        block.holders += 1
        parts: list[tuple[Kind, BlockArrays | None]] = [("kv", cut.kv), ("state", cut.state)]
        for kind, arrays in parts:
            if arrays is not None:
                memory.store(block, kind, arrays, self._cache.codec, on_disk=whole or self._on_disk)
        memory.touch(block)
        if not self._cache.layout.has_state:
            self._drop_superseded(block, tokens)
        self._last = block
        if whole:
            self._advance_to(block)
        block.holders -= 1
        memory.tree.prune(block)

    def _drop_superseded(self, block: Block, tokens: TokenIds) -> None:
        """Drop shorter blocks whose tokens are a prefix of this block's."""
        for other in list(self._at.children.values()):
            shorter = other.count < block.count and other.tokens is not None
            if shorter and other.tokens == tokens[: other.count]:
                self._cache.memory.drop(other)


def _arrays(block: Block, kind: Kind) -> BlockArrays:
    payload = block.part(kind).payload
    assert isinstance(payload, BlockArrays)
    return payload
