"""The folders of this project for the current user."""

import contextlib
import os
from pathlib import Path
from typing import IO

import platformdirs

_NAME = "mlx-nats-cluster"


def cache_folder() -> Path:
    """Return the folder of files that can be recreated, as converted models.

    Honours XDG_CACHE_HOME on Linux.
    """
    return platformdirs.user_cache_path(_NAME)


def data_folder() -> Path:
    """Return the folder of files that must survive: ids, logs, JetStream's store.

    Honours XDG_DATA_HOME on Linux.
    """
    return platformdirs.user_data_path(_NAME)


def make_private(folder: Path) -> None:
    """Create a folder that holds prompts, names or keys, for its owner only; close an existing one.

    Raises:
        OSError: it cannot be created.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        with contextlib.suppress(PermissionError):  # of another user
            folder.chmod(0o700)


def append_private(file: Path) -> IO[bytes]:
    """Open a file to append to, created for its owner only.

    Raises:
        OSError: it cannot be opened.
    """
    return open(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")
