"""The folder of the files of blocks, which one process at a time writes to.

A file is written under a temporary name and renamed when complete, so that a crash of the process
leaves no incomplete file under a block's name. Files are not synced with fsync: their checksums
detect what a crash of the machine left half written.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker.kv_memory.block_file import (
    BlockContent,
    BlockFileName,
    decode,
    encode,
)

_LOCK = "lock"
_WRITES = "writes-today"
_UNFINISHED = ".part"
_STAT_BLOCK = 512
_PRIVATE = 0o700
_MIN_FREE_BYTES = 2**30
_DAY_S = 86_400


class BlockFolderError(Exception):
    """The folder cannot be used; the message says why and what to do."""


class BlockFolderInUseError(BlockFolderError):
    """Another process has locked the folder."""


@dataclass(frozen=True, slots=True)
class BlockFile:
    """A file of an earlier run; `used_at` is in seconds since 1970."""

    name: BlockFileName
    file_bytes: int
    used_at: float


class BlockFolder:
    """Reads, writes and deletes the files of blocks. Used by the threads of `BlockFileThreads`.

    Raises:
        BlockFolderError: from `open`, if another process has locked the folder, or it cannot
            write there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._writes: int | None = None

    def open(self) -> None:
        try:
            self.path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._writes = os.open(
                self.path / _WRITES, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            self._delete_unfinished()
        except BlockingIOError:
            self.close()
            raise BlockFolderInUseError(
                f"{self.path} is used by another process: set a different "
                "worker.kv_cache.disk_path for each worker"
            ) from None
        except OSError as error:
            self.close()
            raise BlockFolderError(
                f"{self.path} cannot be used: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        for descriptor in (self._lock, self._writes):
            if descriptor is not None:
                os.close(descriptor)
        self._lock = self._writes = None

    def scan(self) -> Iterator[BlockFile]:
        """Yield all files of blocks; their content is not read."""
        with os.scandir(self.path) as entries:
            for entry in entries:
                if (name := BlockFileName.parse(entry.name)) is not None:
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        yield BlockFile(name, status.st_blocks * _STAT_BLOCK, status.st_mtime)

    def write(self, name: BlockFileName, content: BlockContent) -> int:
        """Write a file; returns its size on disk.

        Raises:
            OSError: the file could not be written; nothing is left of it.
        """
        buffers = encode(name, content)
        length = sum(memoryview(buffer).nbytes for buffer in buffers)
        self._check_free(length)
        path = self.path / str(name)
        unfinished = path.with_name(path.name + _UNFINISHED)
        try:
            descriptor = os.open(
                unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
            )
            try:
                _write_all(descriptor, buffers)
                allocated = os.fstat(descriptor).st_blocks * _STAT_BLOCK
            finally:
                os.close(descriptor)
            os.rename(unfinished, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(unfinished)
            raise
        return max(allocated, length)

    def read(self, name: BlockFileName) -> BlockContent:
        """Read the content of a file.

        Raises:
            OSError: the file does not exist, or cannot be read.
            BrokenBlockError: the content is not what was written.
        """
        with open(self.path / str(name), "rb", buffering=0) as file:
            return decode(name, file, os.fstat(file.fileno()).st_size)

    def delete(self, name: BlockFileName) -> None:
        """Delete a file, if it exists.

        Raises:
            OSError: the file could not be deleted.
        """
        with suppress(FileNotFoundError):
            os.unlink(self.path / str(name))

    # Bytes written per day.

    def written_today(self) -> int:
        """Return the bytes written since midnight, UTC, by all processes that used the folder."""
        assert self._writes is not None
        day, _, count = os.pread(self._writes, 64, 0).partition(b" ")
        try:
            return int(count) if int(day) == _today() else 0
        except ValueError:
            return 0

    def count_written(self, count: int) -> int:
        """Add to the bytes written today; returns their total."""
        assert self._writes is not None
        total = self.written_today() + count
        os.pwrite(self._writes, b"%-12d %-24d\n" % (_today(), total), 0)
        return total

    def _delete_unfinished(self) -> None:
        """Delete the incomplete files of a process that died."""
        for path in self.path.glob(f"*{_UNFINISHED}"):
            path.unlink(missing_ok=True)

    def _check_free(self, length: int) -> None:
        status = os.statvfs(self.path)
        if status.f_bavail * status.f_frsize < length + _MIN_FREE_BYTES:
            raise OSError(
                errno.ENOSPC, f"less than {_MIN_FREE_BYTES // 2**20} MiB would be left free"
            )


def _write_all(descriptor: int, buffers: Sequence[bytes | memoryview]) -> None:
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    while views:
        done = os.writev(descriptor, views[:64])
        while views and done >= views[0].nbytes:
            done -= views.pop(0).nbytes
        if done:
            views[0] = views[0][done:]


def _today() -> int:
    return int(time.time() // _DAY_S)
