"""The disk tier of blocks, with limits for its size and for the bytes written per day."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worker.kv_memory.block import Block, BlockKey, Kind
from worker.kv_memory.block_file import BlockContent, BlockFileName, size_of
from worker.kv_memory.block_tree import BlockTree
from worker.kv_memory.file_threads import (
    BlockDeleteFailure,
    BlockFileThreads,
    BlockFolderScanned,
    BlockFolderUnusable,
    BlockRead,
    BlockReadFailure,
    BlockWriteFailure,
    BlockWritten,
    DeleteBlock,
    Result,
    WriteBlock,
)

logger = logging.getLogger(__name__)

_ROUNDING_BYTES = 2**16
"""A file may take this much more disk space than its content."""
_RESERVED_BYTES = 2**20
"""The part of the size limit for the folder itself."""
_BACKLOG_BYTES = 2**26
_PAUSE_S = 30.0


@dataclass(slots=True)
class FileTierStatistics:
    """Counts since the start; `broken`: files that were damaged, `failed`: failed reads, writes and
    deletions."""

    written: int = 0
    written_bytes: int = 0
    read: int = 0
    read_bytes: int = 0
    read_s: float = 0.0
    evictions: int = 0
    broken: int = 0
    failed: int = 0


class FileTier:
    """Decides what is written and deleted. Used by the engine thread, like the tree.

    Args:
        cap_bytes: maximum disk space of all files.
        daily_bytes: maximum bytes written per day; None for no limit.
        put: sends a result to the engine thread, which calls `handle_result` with it.

    Attributes:
        held_bytes: disk space of the files, those being written included.
        problem: why nothing is written now, or None.
        ready: whether the folder was scanned; stays False if the folder cannot be used.
    """

    def __init__(
        self,
        path: Path,
        tree: BlockTree,
        *,
        cap_bytes: int,
        daily_bytes: int | None,
        put: Callable[[Result], None],
    ) -> None:
        self._tree = tree
        self._cap_bytes = cap_bytes - _RESERVED_BYTES
        self._daily_bytes = daily_bytes
        self._threads = BlockFileThreads(path, put)
        self._files: OrderedDict[tuple[BlockKey, Kind], Block] = OrderedDict()
        self._writing: dict[tuple[BlockKey, Kind], tuple[Block, int]] = {}
        self._reading: dict[tuple[BlockKey, Kind], Block] = {}
        self._backlog_bytes = 0
        self._paused_until = 0.0
        self.path = path
        self.ready = False
        self.problem: str | None = None
        self.held_bytes = 0
        self.written_today = 0
        self.statistics = FileTierStatistics()

    def start(self) -> None:
        self._threads.start()

    def close(self, timeout_s: float) -> None:
        self._threads.close(timeout_s)

    # Writing.

    @property
    def accepts_writes(self) -> bool:
        """Whether `write` may be called now."""
        if not self.ready or self._backlog_bytes >= _BACKLOG_BYTES:
            return False
        if self.problem is not None and time.monotonic() >= self._paused_until:
            self.problem = None
        return self.problem is None

    def write(self, block: Block, kind: Kind, content: BlockContent) -> bool:
        """Start writing a part, unless a limit forbids it; evicts other files if necessary. The
        block stays in use until the write ends. Returns whether the part is being written."""
        if (block.key, kind) in self._writing:
            return True
        required_bytes = size_of(content) + _ROUNDING_BYTES
        if self._daily_bytes is not None:
            if self.written_today + required_bytes > self._daily_bytes:
                self._pause("the limit worker.kv_cache.disk_writes_mb_per_day is reached")
                return False
        if not self._evict_for(required_bytes):
            return False
        self.held_bytes += required_bytes
        self._backlog_bytes += required_bytes
        self._writing[block.key, kind] = block, required_bytes
        block.users += 1
        self._threads.submit(WriteBlock(_name(block, kind), content))
        return True

    @property
    def busy(self) -> bool:
        """Whether a file is being written or read."""
        return bool(self._writing or self._reading)

    def drop(self, block: Block, kind: Kind) -> None:
        """Delete the file of a part, if there is one."""
        if self._files.pop((block.key, kind), None) is None:
            return
        part = block.parts[kind]
        self.held_bytes -= part.file_bytes
        self._threads.submit(DeleteBlock(_name(block, kind), part.file_bytes))
        part.file_bytes = 0

    def touch(self, block: Block) -> None:
        """Mark a block as most recently used."""
        for kind in block.parts:
            if (block.key, kind) in self._files:
                self._files.move_to_end((block.key, kind))

    def _evict_for(self, required_bytes: int) -> bool:
        """Evict files until this many bytes fit; returns whether they fit."""
        for (_, kind), block in list(self._files.items()):
            if self.held_bytes + required_bytes <= self._cap_bytes:
                break
            if not block.users and not block.pins:
                self.drop(block, kind)
                self.statistics.evictions += 1
                self._tree.prune(block)
        return self.held_bytes + required_bytes <= self._cap_bytes

    # Reading.

    def read(self, block: Block, kind: Kind) -> None:
        """Start reading a file; the block stays in use until the read ends."""
        if (block.key, kind) in self._reading:
            return
        self._reading[block.key, kind] = block
        block.users += 1
        self._threads.read(_name(block, kind))

    # Results.

    def handle_result(self, result: Result) -> tuple[Block, Kind, BlockContent | None] | None:
        """Apply the result of an order.

        Returns:
            For a read: the block, the kind, and the content, or None if the file is lost. None for
            other results.
        """
        match result:
            case BlockFolderScanned():
                self._add_found(result)
            case BlockFolderUnusable():
                self.problem = result.reason
                logger.warning("the KV cache is in memory only: %s", result.reason)
            case BlockWritten():
                self._finish_write(result.write, result.file_bytes)
                self.written_today = result.written_today
                self.statistics.written += 1
                self.statistics.written_bytes += result.file_bytes
            case BlockWriteFailure():
                self._finish_write(result.write, 0)
                self.statistics.failed += 1
                self._pause(f"{self.path}: {result.reason}")
            case BlockDeleteFailure():
                self.held_bytes += result.delete.file_bytes  # the file still takes disk space
                self.statistics.failed += 1
                self._pause(f"{self.path}: {result.reason}")
            case BlockRead():
                self.statistics.read += 1
                self.statistics.read_bytes += sum(t.data.nbytes for t in result.content.tensors)
                self.statistics.read_s += result.seconds
                return self._finish_read(result.name, result.content)
            case BlockReadFailure():
                logger.warning(
                    "a block of the KV cache is computed again: %s: %s", result.name, result.reason
                )
                self.statistics.broken += result.broken
                self.statistics.failed += not result.broken
                return self._finish_read(result.name, None)
        return None

    def _add_found(self, scanned: BlockFolderScanned) -> None:
        """Add the blocks of the files to the tree. A block without its predecessors stays
        unreachable until they are computed again, or it is evicted as least recently used."""
        self.ready = True
        self.written_today = scanned.written_today
        for found in sorted(scanned.found, key=lambda found: found.used_at):
            name = found.name
            block = self._tree.find(name.key) or self._tree.add(name.key, name.parent, name.count)
            part = block.part(name.kind)
            if part.file_bytes == 0:
                part.file_bytes = found.file_bytes
                self.held_bytes += found.file_bytes
                self._files[name.key, name.kind] = block
        self._evict_for(0)

    def _finish_write(self, write: WriteBlock, file_bytes: int) -> None:
        name = write.name
        block, reserved = self._writing.pop((name.key, name.kind))
        block.users -= 1
        self._backlog_bytes -= reserved
        self.held_bytes += file_bytes - reserved
        block.part(name.kind).file_bytes = file_bytes
        if file_bytes:
            self._files[name.key, name.kind] = block
        self._tree.prune(block)

    def _finish_read(
        self, name: BlockFileName, content: BlockContent | None
    ) -> tuple[Block, Kind, BlockContent | None]:
        block = self._reading.pop((name.key, name.kind))
        block.users -= 1
        if content is None:
            self.drop(block, name.kind)
        return block, name.kind, content

    def _pause(self, problem: str) -> None:
        if self.problem is None:
            logger.warning("writing the KV cache to disk is paused: %s", problem)
        self.problem = problem
        self._paused_until = time.monotonic() + _PAUSE_S


def _name(block: Block, kind: Kind) -> BlockFileName:
    assert block.parent is not None  # a root has no parts
    return BlockFileName(block.key, block.parent.key, block.count, kind)
