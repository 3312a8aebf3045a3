"""The KV memory of an engine: blocks of all models in memory, and on disk behind them."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from shared.settings.worker import WorkerSettings
from worker.engine.cache_blocks import Arrays, BlockCodec
from worker.kv_memory.block import Block, BlockKey, Kind
from worker.kv_memory.block_tree import BlockTree
from worker.kv_memory.cached_sequences import TrackedSequences, exclusive_blocks
from worker.kv_memory.file_threads import Result
from worker.kv_memory.file_tier import FileTier
from worker.kv_memory.memory_tier import MemoryTier
from worker.link.facts import KVMemoryMeasured, SequenceCached, SequenceMeasured

_CLOSE_S = 2.0


@dataclass(frozen=True, slots=True)
class KVMemorySettings:
    """
    Attributes:
        block_tokens: of a block.
        memory_bytes: what blocks may take in memory.
        path: of the folder for files; None for none.
        disk_bytes: what all files may take.
        daily_bytes: what may be written to disk a day.
        bits: of a number of keys and values as they are kept; None for as they are.
    """

    block_tokens: int = 256
    memory_bytes: int = 2**62
    path: Path | None = None
    disk_bytes: int = 0
    daily_bytes: int | None = None
    bits: int | None = None
    enabled: bool = True


NOTHING_KEPT = KVMemorySettings(enabled=False)
_DEFAULT_SHARE = 4
_MB = 1_000_000
_TEXTS_AT_ONCE = 64


def kv_memory_settings(
    worker: WorkerSettings, path: Path | None, memory_limit: int, *, engines: int
) -> KVMemorySettings:
    """What the settings say for one of a worker's engines.

    Args:
        path: of the folder for files.
        memory_limit: bytes that the device allows; by default blocks may take a quarter.
        engines: of this worker, which share all of it.
    """
    settings = worker.kv_cache
    hard = worker.resource_limits.critical_memory_mb
    ceiling = memory_limit if hard is None else min(memory_limit, hard * _MB)
    memory = ceiling // _DEFAULT_SHARE if settings.memory_mb is None else settings.memory_mb * _MB
    daily = settings.disk_writes_mb_per_day
    return KVMemorySettings(
        enabled=settings.enabled,
        block_tokens=settings.block_tokens,
        memory_bytes=memory // engines,
        path=path,
        disk_bytes=settings.disk_mb * _MB // engines,
        daily_bytes=None if daily is None else daily * _MB // engines,
        bits=None if settings.bits == "native" else settings.bits,
    )


@dataclass(slots=True)
class KVMemoryStatistics:
    """Since the start.

    Attributes:
        hits: prompts of which some tokens were there.
        prompt_tokens: of all prompts.
        saved_tokens: of them those that were not computed.
        promoted: blocks that were read for prompts that had not come yet.
        restore_s: for putting blocks into caches.
    """

    hits: int = 0
    misses: int = 0
    prompt_tokens: int = 0
    saved_tokens: int = 0
    promoted: int = 0
    restores: int = 0
    restore_s: float = 0.0


@dataclass(slots=True)
class KVMemory:
    """Belongs to the engine thread.

    Args:
        put: takes what the threads for files have done, on one of them; the engine thread gives
            it to `take`.
    """

    settings: KVMemorySettings
    put: Callable[[Result], None]
    tree: BlockTree = field(init=False)
    memory: MemoryTier = field(init=False)
    files: FileTier | None = field(init=False, default=None)
    figures: KVMemoryStatistics = field(init=False, default_factory=KVMemoryStatistics)
    _to_write: "OrderedDict[tuple[BlockKey, Kind], tuple[Block, BlockCodec]]" = field(
        init=False, default_factory=OrderedDict
    )
    _codecs: "dict[tuple[BlockKey, Kind], BlockCodec]" = field(init=False, default_factory=dict)
    _limit_bytes: int = field(init=False)
    texts: TrackedSequences = field(init=False)
    _kept: list[SequenceCached] = field(init=False, default_factory=list)
    _to_drop: list[Block] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        settings = self.settings
        self.tree = BlockTree(settings.block_tokens)
        self.texts = TrackedSequences(self.tree)
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
        """Finish what was handed over to be written, as far as that goes quickly."""
        if self.files is not None:
            self.files.close(_CLOSE_S)

    # Keeping.

    def keep(
        self, block: Block, kind: Kind, arrays: Arrays, codec: BlockCodec, *, on_disk: bool
    ) -> None:
        """Keep a part of a block that was computed; with `on_disk` also there, in time."""
        if not block.in_memory(kind):
            self.memory.put(block, kind, arrays)
        if on_disk and self.files is not None and not block.part(kind).file_bytes:
            self._to_write[block.key, kind] = block, codec
        self.memory.shrink(self._limit_bytes)

    @property
    def limit_bytes(self) -> int:
        """What blocks may take in memory now."""
        return self._limit_bytes

    def limit(self, most_bytes: int) -> None:
        """Blocks may take so much in memory at most, and never more than their own limit."""
        self._limit_bytes = max(0, min(self.settings.memory_bytes, most_bytes))
        self.memory.shrink(self._limit_bytes)

    def touch(self, block: Block) -> None:
        """A text up to this block was used: of its blocks the first one last."""
        at: Block | None = block
        while at is not None and at.parent is not None:
            self.memory.touch(at)
            if self.files is not None:
                self.files.touch(at)
            at = at.parent

    def drop(self, block: Block) -> None:
        """Forget a block that nobody needs."""
        if block.users or block.pins:
            return
        for kind in block.parts:
            self._to_write.pop((block.key, kind), None)
            self.memory.drop(block, kind)
            if self.files is not None:
                self.files.drop(block, kind)
        self.tree.prune(block)

    # Whole texts.

    def ended(self, sequence: int, last: Block) -> None:
        """What is kept of a sequence ends with this block: from now on its text is followed."""
        if last.parent is not None:
            self.texts.follow(last.key, pinned=self.texts.pins(last.key))
            self._kept.append(SequenceCached(sequence, last.key.hex(), last.end))

    def take_kept(self) -> list[SequenceCached]:
        """The texts that ended since this was asked last."""
        kept, self._kept = self._kept, []
        return kept

    def drop_text(self, end: BlockKey) -> None:
        """Follow a text no more, and let all go that no other text has."""
        self.texts.forget(end)
        if (block := self.tree.find(end)) is not None:
            self._to_drop += exclusive_blocks(block)
            self.drop_forgotten()

    def drop_forgotten(self) -> None:
        """Let go what was to be dropped, as far as nobody uses it now."""
        for block in self._to_drop:
            self.drop(block)
        self._to_drop = [block for block in self._to_drop if block.users]

    def measured_texts(self) -> list[SequenceMeasured]:
        """Followed texts of which something changed; of many a part at a time."""
        return [
            SequenceMeasured(end.hex(), **asdict(figures))
            for end, figures in self.texts.changed(_TEXTS_AT_ONCE)
        ]

    # Disk.

    @property
    def unwritten(self) -> bool:
        """Whether something is to be written, now or when there is room for it again."""
        return bool(self._to_write) and self.files is not None and self.files.problem is None

    @property
    def can_write(self) -> bool:
        """Whether `write_one` has something to do."""
        return bool(self._to_write) and self.files is not None and self.files.takes

    def write_one(self) -> None:
        """Hand the next part over to be written."""
        assert self.files is not None
        (_, kind), (block, codec) = self._to_write.popitem(last=False)
        arrays = block.part(kind).payload
        if isinstance(arrays, Arrays) and not block.part(kind).file_bytes:
            self.files.write(block, kind, codec.content(arrays))

    def read(self, block: Block, kind: Kind, codec: BlockCodec) -> None:
        """Have a part come from disk; `take` brings it."""
        assert self.files is not None
        self._codecs[block.key, kind] = codec
        self.files.read(block, kind)

    def is_reading(self, block: Block, kind: Kind) -> bool:
        """Whether a part is on its way from disk."""
        return (block.key, kind) in self._codecs

    def take(self, result: Result) -> None:
        """Take in what a thread for files has done."""
        assert self.files is not None
        read = self.files.take(result)
        if read is None:
            self.memory.shrink(self._limit_bytes)
            return
        block, kind, content = read
        codec = self._codecs.pop((block.key, kind))
        if content is not None and not block.in_memory(kind):
            try:
                self.memory.put(block, kind, codec.arrays(content, kind))
            except ValueError:
                self.files.figures.broken += 1
                self.files.drop(block, kind)
        self.tree.prune(block)
        self.memory.shrink(self._limit_bytes)

    def measured(self) -> KVMemoryMeasured:
        """The present state, for people."""
        figures, memory, files = self.figures, self.memory, self.files
        ours = KVMemoryMeasured(
            blocks=len(self.tree),
            hits=figures.hits,
            misses=figures.misses,
            prompt_tokens=figures.prompt_tokens,
            saved_tokens=figures.saved_tokens,
            restore_ms=_average_ms(figures.restore_s, figures.restores),
            memory_bytes=memory.held_bytes,
            memory_limit_bytes=self._limit_bytes if self.settings.enabled else 0,
            evictions=memory.evictions,
        )
        if files is None:
            return ours
        return replace(
            ours,
            disk_bytes=files.held_bytes,
            disk_limit_bytes=self.settings.disk_bytes,
            disk_evictions=files.figures.evictions,
            read_blocks=files.figures.read,
            read_bytes=files.figures.read_bytes,
            read_ms=_average_ms(files.figures.read_s, files.figures.read),
            promoted_blocks=figures.promoted,
            written_blocks=files.figures.written,
            written_bytes=files.figures.written_bytes,
            written_today_bytes=files.written_today,
            broken_files=files.figures.broken,
            failed_files=files.figures.failed,
            problem=files.problem,
        )

    def _evicted(self, block: Block, kind: Kind) -> None:
        self._to_write.pop((block.key, kind), None)
        self.tree.prune(block)


def _average_ms(seconds: float, count: int) -> float:
    return round(1000 * seconds / count, 2) if count else 0.0
