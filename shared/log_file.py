"""A log file that an external tool rotates."""

import os
from pathlib import Path

from shared.errors import SettingsError


class WatchedLogFile:
    """Appends lines to a file. If the file is renamed or removed, as newsyslog does, the next
    lines go to a new file: rotation needs no signal."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            SettingsError: the file cannot be opened for writing.
        """
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = self._open()
        except OSError as error:
            raise SettingsError(
                f"logging.file: {path}: {error.strerror}", param="logging.file"
            ) from None

    def write(self, lines: bytes) -> None:
        """
        Raises:
            OSError: the disk is full, or the folder is gone.
        """
        if self._renamed():
            descriptor = self._open()
            os.close(self._descriptor)
            self._descriptor = descriptor
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def flush(self) -> None:
        """Do nothing: `write` does not buffer."""

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _renamed(self) -> bool:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return True
        return not os.path.samestat(found, os.fstat(self._descriptor))
