"""The threads that read and write the files of blocks. They never touch MLX."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worker.kv_memory.block_file import BlockContent, BlockFileName, BrokenBlockError
from worker.kv_memory.folder import BlockFile, BlockFolder, BlockFolderError, BlockFolderInUseError

_LOCK_TIMEOUT_S = 10.0
_LOCK_RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class WriteBlock:
    name: BlockFileName
    content: BlockContent


@dataclass(frozen=True, slots=True)
class DeleteBlock:
    name: BlockFileName
    file_bytes: int


@dataclass(frozen=True, slots=True)
class BlockFolderScanned:
    """The files that were in the folder at the start."""

    found: list[BlockFile]
    written_today: int


@dataclass(frozen=True, slots=True)
class BlockFolderUnusable:
    """The folder cannot be used by this process."""

    reason: str


@dataclass(frozen=True, slots=True)
class BlockWritten:
    """Holds the content, so that the receiving thread frees its memory instead of a file thread."""

    write: WriteBlock
    file_bytes: int
    written_today: int


@dataclass(frozen=True, slots=True)
class BlockWriteFailure:
    write: WriteBlock
    reason: str


@dataclass(frozen=True, slots=True)
class BlockDeleteFailure:
    delete: DeleteBlock
    reason: str


@dataclass(frozen=True, slots=True)
class BlockRead:
    name: BlockFileName
    content: BlockContent
    seconds: float


@dataclass(frozen=True, slots=True)
class BlockReadFailure:
    """`broken`: the file exists, but its content is not what was written."""

    name: BlockFileName
    reason: str
    broken: bool


Result = (
    BlockFolderScanned
    | BlockFolderUnusable
    | BlockWritten
    | BlockWriteFailure
    | BlockDeleteFailure
    | BlockRead
    | BlockReadFailure
)


class BlockFileThreads:
    """Writes and deletes files in the order of submission, and reads files in parallel.

    Args:
        put: called with the result of each order, on one of the threads.
    """

    def __init__(self, path: Path, put: Callable[[Result], None]) -> None:
        self._folder = BlockFolder(path)
        self._put = put
        self._changes: queue.SimpleQueue[WriteBlock | DeleteBlock | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[BlockFileName | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._change, name="kv-write", daemon=True),
            threading.Thread(target=self._read, name="kv-read", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, order: WriteBlock | DeleteBlock) -> None:
        self._changes.put(order)

    def read(self, name: BlockFileName) -> None:
        self._reads.put(name)

    def close(self, timeout_s: float) -> None:
        """Finish the submitted orders, within the timeout, and unlock the folder."""
        self._changes.put(None)
        self._reads.put(None)
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _change(self) -> None:
        try:
            self._open()
            found = list(self._folder.scan())
            self._put(BlockFolderScanned(found, self._folder.written_today()))
        except Exception as error:
            known = isinstance(error, BlockFolderError | OSError)
            self._put(BlockFolderUnusable(str(error) if known else repr(error)))
            return
        while (order := self._changes.get()) is not None:
            match order:
                case WriteBlock():
                    self._put(self._write(order))
                case DeleteBlock():
                    try:
                        self._folder.delete(order.name)
                    except Exception as error:
                        self._put(BlockDeleteFailure(order, _reason(error)))
        self._folder.close()

    def _open(self) -> None:
        """Open the folder; retries while an engine that is ending still has the lock."""
        until = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                return self._folder.open()
            except BlockFolderInUseError:
                if time.monotonic() >= until:
                    raise
                time.sleep(_LOCK_RETRY_S)

    def _write(self, order: WriteBlock) -> Result:
        try:
            file_bytes = self._folder.write(order.name, order.content)
            return BlockWritten(order, file_bytes, self._folder.count_written(file_bytes))
        except Exception as error:
            return BlockWriteFailure(order, _reason(error))

    def _read(self) -> None:
        while (name := self._reads.get()) is not None:
            began_at = time.perf_counter()
            try:
                content = self._folder.read(name)
                self._put(BlockRead(name, content, time.perf_counter() - began_at))
            except FileNotFoundError:
                self._put(BlockReadFailure(name, "it is gone", broken=False))
            except BrokenBlockError as error:
                self._put(BlockReadFailure(name, str(error), broken=True))
            except Exception as error:  # also a lack of memory
                self._put(BlockReadFailure(name, _reason(error), broken=False))


def _reason(error: Exception) -> str:
    """Return a description of any error: the threads outlive it, because blocks would be in use for
    ever if an order had no result."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
