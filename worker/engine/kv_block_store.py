"""The KV memory of an engine: blocks of all models in memory, and on disk behind them."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from shared.settings.worker import WorkerSettings
from worker.engine.cache_blocks import BlockArrays, BlockCodec
from worker.kv_memory.block import Block, BlockKey, Kind
from worker.kv_memory.block_tree import BlockTree
from worker.kv_memory.cached_sequences import CachedSequences, exclusive_blocks
from worker.kv_memory.file_threads import Result
from worker.kv_memory.file_tier import FileTier
from worker.kv_memory.memory_tier import MemoryTier
from worker.link.facts import CachedSequenceMeasurements, PrefixCacheMeasurements, SequenceCached

_CLOSE_S = 2.0


@dataclass(frozen=True, slots=True)
class PrefixCacheConfig:
    """
    Attributes:
        block_tokens: tokens per block.
        memory_bytes: the limit of blocks in memory.
        path: the folder of block files; None disables the disk tier.
        disk_bytes: the limit of all files.
        daily_bytes: the limit of bytes written to disk per day; None for no limit.
        bits: bits per stored key and value; None stores them unchanged.
    """

    block_tokens: int = 256
    memory_bytes: int = 2**62
    path: Path | None = None
    disk_bytes: int = 0
    daily_bytes: int | None = None
    bits: int | None = None
    enabled: bool = True


KV_MEMORY_DISABLED = PrefixCacheConfig(enabled=False)
_DEFAULT_SHARE = 4
_MB = 1_000_000
_MEASURED_AT_ONCE = 64


def kv_memory_settings(
    worker: WorkerSettings, path: Path | None, memory_limit: int, *, engines: int
) -> PrefixCacheConfig:
    """Return the settings for one engine of a worker.

    Args:
        path: the folder of block files.
        memory_limit: bytes that the device allows; by default blocks may use a quarter.
        engines: the number of engines of this worker, which share memory and disk.
    """
    settings = worker.kv_cache
    hard = worker.resource_limits.critical_memory_mb
    ceiling = memory_limit if hard is None else min(memory_limit, hard * _MB)
    memory = ceiling // _DEFAULT_SHARE if settings.memory_mb is None else settings.memory_mb * _MB
    daily = settings.disk_writes_mb_per_day
    return PrefixCacheConfig(
        enabled=settings.enabled,
        block_tokens=settings.block_tokens,
        memory_bytes=memory // engines,
        path=path,
        disk_bytes=settings.disk_mb * _MB // engines,
        daily_bytes=None if daily is None else daily * _MB // engines,
        bits=None if settings.bits == "native" else settings.bits,
    )


@dataclass(slots=True)
class PrefixCacheStatistics:
    """Totals since the start.

    Attributes:
        hits: prompts with cached tokens.
        prompt_tokens: tokens of all prompts.
        saved_tokens: prompt tokens that were cached and not computed.
        promoted: blocks prefetched from disk.
        restore_s: time spent copying blocks into KV caches.
    """

    hits: int = 0
    misses: int = 0
    prompt_tokens: int = 0
    saved_tokens: int = 0
    promoted: int = 0
    restores: int = 0
    restore_s: float = 0.0


@dataclass(slots=True)
class KVBlockStore:
    """Belongs to the engine thread.

    Args:
        put: receives the results of the file threads, on one of these threads; the engine thread
            passes them to `handle_result`.
    """

    settings: PrefixCacheConfig
    put: Callable[[Result], None]
    tree: BlockTree = field(init=False)
    memory: MemoryTier = field(init=False)
    files: FileTier | None = field(init=False, default=None)
    statistics: PrefixCacheStatistics = field(init=False, default_factory=PrefixCacheStatistics)
    _to_write: "OrderedDict[tuple[BlockKey, Kind], tuple[Block, BlockCodec]]" = field(
        init=False, default_factory=OrderedDict
    )
    _codecs: "dict[tuple[BlockKey, Kind], BlockCodec]" = field(init=False, default_factory=dict)
    _limit_bytes: int = field(init=False)
    sequences: CachedSequences = field(init=False)
    _cached: list[SequenceCached] = field(init=False, default_factory=list)
    _to_drop: list[Block] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        settings = self.settings
        self.tree = BlockTree(settings.block_tokens)
        self.sequences = CachedSequences(self.tree)
        self.memory = MemoryTier(self._evicted)
        self._limit_bytes = settings.memory_bytes
        if settings.enabled and settings.path is not None and settings.disk_bytes > 0:
            self.files = FileTier(
                settings.path,
                self.tree,
                cap_bytes=settings.disk_bytes,
                daily_bytes=settings.daily_bytes,
                put=self.put,
            )

    def start(self) -> None:
        if self.files is not None:
            self.files.start()

    def close(self) -> None:
        """Finish pending writes, for a few seconds at most."""
        if self.files is not None:
            self.files.close(_CLOSE_S)

    # Blocks.

    def store(
        self, block: Block, kind: Kind, arrays: BlockArrays, codec: BlockCodec, *, on_disk: bool
    ) -> None:
        """Store a computed part of a block; with `on_disk` it is queued to be written, too."""
        if not block.in_memory(kind):
            self.memory.put(block, kind, arrays)
        if on_disk and self.files is not None and not block.part(kind).file_bytes:
            self._to_write[block.key, kind] = block, codec
        self.memory.shrink(self._limit_bytes)

    @property
    def limit_bytes(self) -> int:
        """The current limit of blocks in memory."""
        return self._limit_bytes

    def limit(self, max_bytes: int) -> None:
        """Limit blocks in memory to `max_bytes`, and to the limit of the settings."""
        self._limit_bytes = max(0, min(self.settings.memory_bytes, max_bytes))
        self.memory.shrink(self._limit_bytes)

    def touch(self, block: Block) -> None:
        """Mark the blocks of a sequence up to this one as used. The first block is marked last, so
        that it is evicted last."""
        at: Block | None = block
        while at is not None and at.parent is not None:
            self.memory.touch(at)
            if self.files is not None:
                self.files.touch(at)
            at = at.parent

    def drop(self, block: Block) -> None:
        """Drop a block from memory and disk, unless it is in use or pinned."""
        if block.users or block.pins:
            return
        for kind in block.parts:
            self._to_write.pop((block.key, kind), None)
            self.memory.drop(block, kind)
            if self.files is not None:
                self.files.drop(block, kind)
        self.tree.prune(block)

    # Cached sequences.

    def record_end(self, sequence: int, last: Block) -> None:
        """Record that the blocks of a sequence end with this one, and track the cached sequence."""
        if last.parent is not None:
            self.sequences.track(last.key, pinned=self.sequences.is_pinned(last.key))
            self._cached.append(SequenceCached(sequence, last.key.hex(), last.end))

    def take_cached(self) -> list[SequenceCached]:
        """Return, and clear, the sequences whose blocks are complete."""
        cached, self._cached = self._cached, []
        return cached

    def drop_sequence(self, end: BlockKey) -> None:
        """Stop tracking a cached sequence, and drop the blocks that no other sequence has."""
        self.sequences.untrack(end)
        if (block := self.tree.find(end)) is not None:
            self._to_drop += exclusive_blocks(block)
            self.drop_unused()

    def drop_unused(self) -> None:
        """Drop the blocks of dropped sequences that are no longer in use."""
        for block in self._to_drop:
            self.drop(block)
        self._to_drop = [block for block in self._to_drop if block.users]

    def measured_sequences(self) -> list[CachedSequenceMeasurements]:
        """Return the tracked sequences that changed, at most 64 per call."""
        return [
            CachedSequenceMeasurements(end.hex(), **asdict(measured))
            for end, measured in self.sequences.changed(_MEASURED_AT_ONCE)
        ]

    # Disk.

    @property
    def unwritten(self) -> bool:
        """Whether parts wait to be written, now or when the disk tier accepts writes again."""
        return bool(self._to_write) and self.files is not None and self.files.problem is None

    @property
    def can_write(self) -> bool:
        """Whether `write_one` may be called."""
        return bool(self._to_write) and self.files is not None and self.files.accepts_writes

    def write_one(self) -> None:
        """Pass the next part to the file threads to be written."""
        assert self.files is not None
        (_, kind), (block, codec) = self._to_write.popitem(last=False)
        arrays = block.part(kind).payload
        if isinstance(arrays, BlockArrays) and not block.part(kind).file_bytes:
            self.files.write(block, kind, codec.content(arrays))

    def read(self, block: Block, kind: Kind, codec: BlockCodec) -> None:
        """Start reading a part from disk; `handle_result` stores it in memory."""
        assert self.files is not None
        self._codecs[block.key, kind] = codec
        self.files.read(block, kind)

    def is_reading(self, block: Block, kind: Kind) -> bool:
        """Whether a part is being read from disk."""
        return (block.key, kind) in self._codecs

    def handle_result(self, result: Result) -> None:
        """Process a result of a file thread."""
        assert self.files is not None
        read = self.files.handle_result(result)
        if read is None:
            self.memory.shrink(self._limit_bytes)
            return
        block, kind, content = read
        codec = self._codecs.pop((block.key, kind))
        if content is not None and not block.in_memory(kind):
            try:
                self.memory.put(block, kind, codec.arrays(content, kind))
            except Exception:  # its checksum is right, and the model cannot use it
                self.files.statistics.broken += 1
                self.files.drop(block, kind)
        self.tree.prune(block)
        self.memory.shrink(self._limit_bytes)

    def measured(self) -> PrefixCacheMeasurements:
        """Return the current state, for reports."""
        statistics, memory, files = self.statistics, self.memory, self.files
        measured = PrefixCacheMeasurements(
            blocks=len(self.tree),
            hits=statistics.hits,
            misses=statistics.misses,
            prompt_tokens=statistics.prompt_tokens,
            saved_tokens=statistics.saved_tokens,
            restore_ms=_average_ms(statistics.restore_s, statistics.restores),
            memory_bytes=memory.held_bytes,
            memory_limit_bytes=self._limit_bytes if self.settings.enabled else 0,
            evictions=memory.evictions,
        )
        if files is None:
            return measured
        return replace(
            measured,
            disk_bytes=files.held_bytes,
            disk_limit_bytes=self.settings.disk_bytes,
            disk_evictions=files.statistics.evictions,
            read_blocks=files.statistics.read,
            read_bytes=files.statistics.read_bytes,
            read_ms=_average_ms(files.statistics.read_s, files.statistics.read),
            promoted_blocks=statistics.promoted,
            written_blocks=files.statistics.written,
            written_bytes=files.statistics.written_bytes,
            written_today_bytes=files.written_today,
            broken_files=files.statistics.broken,
            failed_files=files.statistics.failed,
            problem=files.problem,
        )

    def _evicted(self, block: Block, kind: Kind) -> None:
        self._to_write.pop((block.key, kind), None)
        self.tree.prune(block)


def _average_ms(seconds: float, count: int) -> float:
    return round(1000 * seconds / count, 2) if count else 0.0
