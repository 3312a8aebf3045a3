"""The folder of a KV cache, as it looks from outside while an engine writes into it."""

import os
import threading
from pathlib import Path
from typing import Self

_INTERVAL_S = 0.003
_UNFINISHED = ".part"
_STAT_BLOCK = 512

_File = tuple[int, str]


class WatchedFolder:
    """Samples what the files take, unfinished ones too, on a thread; a context manager.

    Attributes:
        most_bytes: the highest sample.
        samples: how many there were.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.most_bytes = 0
        self.samples = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(_INTERVAL_S):
            self.most_bytes = max(self.most_bytes, bytes_now(self._path))
            self.samples += 1


def bytes_now(folder: Path) -> int:
    """What the folder takes at a moment between two looks at it: only files that both have seen
    count, because one that is gone may have made room for another. As long as it is written to, a
    file only grows; what it is called does not matter."""
    first = _sizes(folder)
    still_there = _sizes(folder).keys()
    own = os.stat(folder).st_blocks * _STAT_BLOCK if first else 0
    return own + sum(size for file, size in first.items() if file in still_there)


def unfinished(folder: Path) -> list[Path]:
    """Files that are being written, or were when their writer died."""
    return list(folder.glob(f"*{_UNFINISHED}"))


def whole(folder: Path) -> list[Path]:
    """Files that were written."""
    return list(folder.glob("*.safetensors"))


def _sizes(folder: Path) -> dict[_File, int]:
    """Of each file the larger one of its length and what it takes on the disk."""
    sizes = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                taken = max(status.st_size, status.st_blocks * _STAT_BLOCK)
                sizes[status.st_ino, entry.name.removesuffix(_UNFINISHED)] = taken
    except FileNotFoundError:  # the folder itself: no engine has made it yet
        pass
    return sizes
