"""The folder with the files of blocks: one process at a time writes into it.

A file is written under another name and renamed when it is whole, so that a death in between
leaves nothing under a name that counts. Nothing is synced to the disk by force: a checksum finds
whatever a crash of the machine has left half written.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker.kv_memory.block_file import BlockContent, BrokenBlockError, FileName, decode, encode

_LOCK = "lock"
_WRITES = "writes-today"
_UNFINISHED = ".part"
_STAT_BLOCK = 512
_PRIVATE = 0o700
_LEAST_FREE_BYTES = 2**30
_DAY_S = 86_400


class FolderError(Exception):
    """The folder cannot be used, or not now; the text says why and what to do."""


class FolderInUseError(FolderError):
    """Another process has it."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of an earlier run; `used_at` in seconds since 1970."""

    name: FileName
    file_bytes: int
    used_at: float


class BlockFolder:
    """Every method but `open` belongs to the threads that read and write files.

    Raises:
        FolderError: from `open`, when another process has the folder, or nothing can be written
            there.
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
            self._clear()
        except BlockingIOError:
            self.close()
            raise FolderInUseError(
                f"{self.path} is used by another process: give each worker a "
                "worker.kv_cache.disk_path of its own"
            ) from None
        except OSError as error:
            self.close()
            raise FolderError(f"{self.path} cannot be used: {error.strerror or error}") from error

    def close(self) -> None:
        for descriptor in (self._lock, self._writes):
            if descriptor is not None:
                os.close(descriptor)
        self._lock = self._writes = None

    def scan(self) -> Iterator[FoundFile]:
        """All files of blocks, of which only the names are looked at."""
        with os.scandir(self.path) as entries:
            for entry in entries:
                if (name := FileName.parse(entry.name)) is not None:
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        yield FoundFile(name, status.st_blocks * _STAT_BLOCK, status.st_mtime)

    def write(self, name: FileName, content: BlockContent) -> int:
        """Returns the bytes that the file takes on the disk.

        Raises:
            OSError: it could not be written; nothing is left of it.
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
                taken = os.fstat(descriptor).st_blocks * _STAT_BLOCK
            finally:
                os.close(descriptor)
            os.rename(unfinished, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(unfinished)
            raise
        return max(taken, length)

    def read(self, name: FileName) -> BlockContent:
        """
        Raises:
            OSError: there is no such file, or it cannot be read.
            BrokenBlockError: it is not what was written.
        """
        path = self.path / str(name)
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            raw = bytearray(size)
            view = memoryview(raw)
            done = 0
            while done < size:
                count = file.readinto(view[done:])
                if not count:
                    raise BrokenBlockError("it is cut short")
                done += count
        return decode(name, view)

    def delete(self, name: FileName) -> None:
        """
        Raises:
            OSError: it is still there.
        """
        with suppress(FileNotFoundError):
            os.unlink(self.path / str(name))

    # What is written a day.

    def written_today(self) -> int:
        """Bytes since midnight, UTC, by whatever process had the folder."""
        assert self._writes is not None
        day, _, count = os.pread(self._writes, 64, 0).partition(b" ")
        try:
            return int(count) if int(day) == _today() else 0
        except ValueError:
            return 0

    def count_written(self, count: int) -> int:
        """Count bytes as written; returns those of today."""
        assert self._writes is not None
        total = self.written_today() + count
        os.pwrite(self._writes, b"%-12d %-24d\n" % (_today(), total), 0)
        return total

    def _clear(self) -> None:
        """Delete what a process that died has left unfinished."""
        for path in self.path.glob(f"*{_UNFINISHED}"):
            path.unlink(missing_ok=True)

    def _check_free(self, needed: int) -> None:
        status = os.statvfs(self.path)
        if status.f_bavail * status.f_frsize < needed + _LEAST_FREE_BYTES:
            raise OSError(
                errno.ENOSPC, f"less than {_LEAST_FREE_BYTES // 2**20} MiB would be left free"
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
