"""What of the blocks is on disk: never more bytes than are allowed, nor more written a day."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worker.kv_memory.block import Block, BlockKey, Kind
from worker.kv_memory.block_file import BlockContent, FileName, size_of
from worker.kv_memory.block_tree import BlockTree
from worker.kv_memory.file_threads import (
    BlockRead,
    BlockUnusable,
    BlockWritten,
    Delete,
    DeleteFailed,
    FileThreads,
    FolderScanned,
    ReadFailed,
    Result,
    Write,
    WriteFailed,
)

logger = logging.getLogger(__name__)

_ROUNDED_TO_BYTES = 2**16
"""A file may take so much more than its content."""
_KEPT_BACK_BYTES = 2**20
"""Of what is allowed, for the folder itself."""
_BACKLOG_BYTES = 2**26
_PAUSE_S = 30.0


@dataclass(slots=True)
class FileStatistics:
    """Since the start; `broken` files were found damaged, `failed` could not be written or read."""

    written: int = 0
    written_bytes: int = 0
    read: int = 0
    read_bytes: int = 0
    read_s: float = 0.0
    evictions: int = 0
    broken: int = 0
    failed: int = 0


class FileTier:
    """Decides what is written and deleted; belongs to the engine thread, like the tree.

    Args:
        cap_bytes: what all files may take on the disk.
        daily_bytes: what may be written a day; None for as much as comes.
        put: wakes the engine thread with a result, which it gives to `take`.

    Attributes:
        held_bytes: what the files take, and those that are being written.
        problem: why nothing is written now, or None.
        ready: whether the folder was looked through; never, where it cannot be used.
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
        self._cap_bytes = cap_bytes - _KEPT_BACK_BYTES
        self._daily_bytes = daily_bytes
        self._threads = FileThreads(path, put)
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
        self.figures = FileStatistics()

    def start(self) -> None:
        self._threads.start()

    def close(self, timeout_s: float) -> None:
        self._threads.close(timeout_s)

    # Writing.

    @property
    def takes(self) -> bool:
        """Whether a block may be given to be written now."""
        if not self.ready or self._backlog_bytes >= _BACKLOG_BYTES:
            return False
        if self.problem is not None and time.monotonic() >= self._paused_until:
            self.problem = None
        return self.problem is None

    def write(self, block: Block, kind: Kind, content: BlockContent) -> bool:
        """Have a part written, if it may be and is not on its way; others have to go for it. The
        block stays in use until then."""
        if (block.key, kind) in self._writing:
            return True
        needed = size_of(content) + _ROUNDED_TO_BYTES
        if self._daily_bytes is not None and self.written_today + needed > self._daily_bytes:
            self._pause(
                "as much was written today as worker.kv_cache.disk_writes_mb_per_day allows"
            )
            return False
        if not self._make_room(needed):
            return False
        self.held_bytes += needed
        self._backlog_bytes += needed
        self._writing[block.key, kind] = block, needed
        block.users += 1
        self._threads.change(Write(_name(block, kind), content))
        return True

    @property
    def busy(self) -> bool:
        """Whether something is being written or read."""
        return bool(self._writing or self._reading)

    def drop(self, block: Block, kind: Kind) -> None:
        """Delete a file, if there is one."""
        if self._files.pop((block.key, kind), None) is None:
            return
        part = block.parts[kind]
        self.held_bytes -= part.file_bytes
        self._threads.change(Delete(_name(block, kind), part.file_bytes))
        part.file_bytes = 0

    def touch(self, block: Block) -> None:
        """It was used just now."""
        for kind in block.parts:
            if (block.key, kind) in self._files:
                self._files.move_to_end((block.key, kind))

    def _make_room(self, needed: int) -> bool:
        for (_, kind), block in list(self._files.items()):
            if self.held_bytes + needed <= self._cap_bytes:
                break
            if not block.users and not block.pins:
                self.drop(block, kind)
                self.figures.evictions += 1
                self._tree.prune(block)
        return self.held_bytes + needed <= self._cap_bytes

    # Reading.

    def read(self, block: Block, kind: Kind) -> None:
        """Have a file read; the block stays in use until that is done."""
        if (block.key, kind) in self._reading:
            return
        self._reading[block.key, kind] = block
        block.users += 1
        self._threads.read(_name(block, kind))

    # Results.

    def take(self, result: Result) -> tuple[Block, Kind, BlockContent | None] | None:
        """Take in what became of an order.

        Returns:
            Of a file that was to be read its block, and its content; None where that is lost.
        """
        match result:
            case FolderScanned():
                self._take_found(result)
            case BlockUnusable():
                self.problem = result.reason
                logger.warning("the KV cache is kept in memory only: %s", result.reason)
            case BlockWritten():
                self._finish(result.write, result.file_bytes)
                self.written_today = result.written_today
                self.figures.written += 1
                self.figures.written_bytes += result.file_bytes
            case WriteFailed():
                self._finish(result.write, 0)
                self.figures.failed += 1
                self._pause(f"{self.path}: {result.reason}")
            case DeleteFailed():
                self.held_bytes += result.delete.file_bytes  # it takes its room as before
                self.figures.failed += 1
                self._pause(f"{self.path}: {result.reason}")
            case BlockRead():
                self.figures.read += 1
                self.figures.read_bytes += sum(t.data.nbytes for t in result.content.tensors)
                self.figures.read_s += result.seconds
                return self._was_read(result.name, result.content)
            case ReadFailed():
                logger.warning(
                    "a block of the KV cache is computed anew: %s: %s", result.name, result.reason
                )
                self.figures.broken += result.broken
                self.figures.failed += not result.broken
                return self._was_read(result.name, None)
        return None

    def _take_found(self, scanned: FolderScanned) -> None:
        """The tree grows by what the files are of; what has lost its beginning stays unreachable
        until that is computed again, or it is evicted as the longest unused."""
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
        self._make_room(0)

    def _finish(self, write: Write, file_bytes: int) -> None:
        name = write.name
        block, reserved = self._writing.pop((name.key, name.kind))
        block.users -= 1
        self._backlog_bytes -= reserved
        self.held_bytes += file_bytes - reserved
        block.part(name.kind).file_bytes = file_bytes
        if file_bytes:
            self._files[name.key, name.kind] = block
        self._tree.prune(block)

    def _was_read(
        self, name: FileName, content: BlockContent | None
    ) -> tuple[Block, Kind, BlockContent | None]:
        block = self._reading.pop((name.key, name.kind))
        block.users -= 1
        if content is None:
            self.drop(block, name.kind)
        return block, name.kind, content

    def _pause(self, problem: str) -> None:
        if self.problem is None:
            logger.warning("nothing is written to the KV cache on disk: %s", problem)
        self.problem = problem
        self._paused_until = time.monotonic() + _PAUSE_S


def _name(block: Block, kind: Kind) -> FileName:
    assert block.parent is not None  # nothing is kept of a root
    return FileName(block.key, block.parent.key, block.count, kind)
