"""One file per session, so that sessions survive a restart."""

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from shared.ids import SessionKey
from worker.sessions.session import Session

logger = logging.getLogger(__name__)

_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600
_SUFFIX = ".json"
_UNFINISHED = ".part"


class SessionFiles:
    """Files are written and deleted in order, on a thread of their own. An I/O error is logged
    once; the affected sessions are then lost at the next restart.

    Args:
        folder: None if nothing may be stored on disk.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sessions")
        self._failed = False

    def read(self) -> Iterator[Session]:
        """Read the sessions of earlier runs; an invalid file is deleted."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"*{_UNFINISHED}"):
                path.unlink()
            for path in self._folder.glob(f"*{_SUFFIX}"):
                try:
                    session = Session.from_json(path.read_bytes())
                    if path.name != _name(session.key):
                        raise ValueError("the file has the name of another session")
                except (ValueError, RecursionError, MemoryError) as error:
                    logger.warning("deleting %s, which is not a valid session: %s", path, error)
                    path.unlink()
                else:
                    yield session

    def write(self, session: Session) -> None:
        if self._folder is not None:
            path = self._folder / _name(session.key)
            self._thread.submit(self._do, partial(_write, path, session.to_json()))

    def delete(self, key: SessionKey) -> None:
        if self._folder is not None:
            path = self._folder / _name(key)
            self._thread.submit(self._do, partial(path.unlink, missing_ok=True))

    def close(self) -> None:
        """Return once all writes are done."""
        self._thread.shutdown()

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # the executor would keep it to itself
            if not self._failed:
                logger.warning("sessions do not survive a restart: %r", error)
            self._failed = True
        else:
            self._failed = False


def _name(key: SessionKey) -> str:
    return hashlib.blake2b("\0".join(key).encode(), digest_size=16).hexdigest() + _SUFFIX


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    unfinished = path.with_suffix(_UNFINISHED)
    private = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE_FILE)
    with os.fdopen(private, "wb") as file:
        file.write(data)
    unfinished.replace(path)
