"""The version of cluster.yaml that was rolled out to this worker, stored on disk over restarts.

If the worker fails twice in a row to become ready with a version, the previous one is restored: a
supervisor that restarts the worker must not do so forever with settings that crash it.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.access.private_file import write_private
from shared.errors import SettingsError
from shared.folders import data_folder
from shared.ids import WorkerId
from shared.settings import ClusterSettings
from shared.settings.rolled_out import RolledOutVersion

logger = logging.getLogger(__name__)

_MAX_STARTS = 2


class _Version(BaseModel):
    model_config = ConfigDict(frozen=True)

    version: int = Field(ge=1)
    text: str


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True)

    current: _Version | None = None
    previous: _Version | None = None
    starts: int = 0
    problem: str | None = None


class RolledOutConfiguration:
    """The stored version of one worker, and the settings that follow from it.

    Args:
        servers: NATS servers of the cluster; versions are stored per cluster.
        load: returns the settings of this machine with a version, or with its own file if None;
            raises SettingsError if they are invalid.
    """

    def __init__(
        self,
        worker: WorkerId,
        servers: Iterable[str],
        load: Callable[[RolledOutVersion | None], ClusterSettings],
    ) -> None:
        self.load = load
        cluster = hashlib.sha256(" ".join(sorted(servers)).encode()).hexdigest()[:12]
        self._path = data_folder() / "rolled-out" / cluster / f"{worker}.json"
        self._stored = _read(self._path)

    @property
    def version(self) -> int:
        """The version that this worker runs; 0 for the machine's own file."""
        return 0 if self._stored.current is None else self._stored.current.version

    @property
    def problem(self) -> str | None:
        """Why `version` is not the one that was rolled out last, or None."""
        return self._stored.problem

    def begin(self) -> ClusterSettings:
        """Return the settings to start with, and count the start; call `on_ready` later.

        Raises:
            SettingsError: the machine's own file is invalid.
        """
        while (current := self._stored.current) is not None:
            if self._stored.starts >= _MAX_STARTS:
                self._roll_back(f"the worker exited {_MAX_STARTS} times before it was ready")
                continue
            try:
                settings = self.load(RolledOutVersion(current.version, current.text))
            except SettingsError as error:
                self._roll_back(error.message)
                continue
            self._store(self._stored.model_copy(update={"starts": self._stored.starts + 1}))
            return settings
        return self.load(None)

    def on_ready(self) -> None:
        """Confirm the version: the worker is ready with it."""
        if self._stored.current is not None and self._stored.starts:
            self._store(self._stored.model_copy(update={"starts": 0}))

    def switch(self, rolled_out: RolledOutVersion | None) -> None:
        """Store another version, or None for the machine's own file; it applies from the next
        start on, unless the worker has applied it already.

        Raises:
            OSError: the version cannot be stored.
        """
        current = None
        if rolled_out is not None:
            current = _Version(version=rolled_out.version, text=rolled_out.text)
        self._store(_Stored(current=current, previous=self._stored.current))

    def _roll_back(self, reason: str) -> None:
        """Return to the previous version, or to the machine's own file."""
        problem = f"version {self.version}: {reason}"
        logger.error("rolling back the settings that were rolled out: %s", problem)
        self._store(_Stored(current=self._stored.previous, problem=problem))

    def _store(self, stored: _Stored) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_private(self._path, stored.model_dump_json().encode())
        self._stored = stored


def _read(path: Path) -> _Stored:
    try:
        return _Stored.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return _Stored()
    except (OSError, ValidationError) as error:
        logger.warning("%s cannot be read and is ignored: %s", path, type(error).__name__)
        return _Stored()
