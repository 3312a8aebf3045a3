"""The version of cluster.yaml that was rolled out to this worker: kept over its restarts.

A version with which the worker does not come up, twice in a row, is left for the one before: a
machine that starts its worker again and again must not do so for ever with settings that end it.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.access.private_file import keep_private
from shared.errors import SettingsError
from shared.folders import data_folder
from shared.ids import WorkerId
from shared.settings import ClusterSettings
from shared.settings.rolled_out import RolledOutVersion

logger = logging.getLogger(__name__)

_MOST_STARTS = 2


class _Version(BaseModel):
    model_config = ConfigDict(frozen=True)

    version: int = Field(ge=1)
    text: str


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True)

    current: _Version | None = None
    previous: _Version | None = None
    starts: int = 0
    problem: str | None = None


class Configuration:
    """What is kept for one worker, and the settings that follow from it.

    Args:
        servers: of the cluster: what another one rolled out is not for this one.
        load: the settings of this machine with a version, or with its own file; raises
            SettingsError where those are none.
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
        self._kept = _read(self._path)

    @property
    def version(self) -> int:
        """That this worker runs; 0 for the machine's own file."""
        return 0 if self._kept.current is None else self._kept.current.version

    @property
    def problem(self) -> str | None:
        """Why that is not the one that was rolled out last, or None."""
        return self._kept.problem

    def begin(self) -> ClusterSettings:
        """The settings to start with; `came_up` is to follow.

        Raises:
            SettingsError: the machine's own file is wrong.
        """
        while (current := self._kept.current) is not None:
            if self._kept.starts >= _MOST_STARTS:
                self._give_up(f"the worker ended {_MOST_STARTS} times before it was ready")
                continue
            try:
                settings = self.load(RolledOutVersion(current.version, current.text))
            except SettingsError as error:
                self._give_up(error.message)
                continue
            self._keep(self._kept.model_copy(update={"starts": self._kept.starts + 1}))
            return settings
        return self.load(None)

    def came_up(self) -> None:
        """The worker is ready: this version is no reason to leave it."""
        if self._kept.current is not None and self._kept.starts:
            self._keep(self._kept.model_copy(update={"starts": 0}))

    def take(self, rolled_out: RolledOutVersion | None) -> None:
        """Run with another version from the next start on, or with this one that was changed to.

        Raises:
            OSError: it cannot be kept.
        """
        current = None
        if rolled_out is not None:
            current = _Version(version=rolled_out.version, text=rolled_out.text)
        self._keep(_Kept(current=current, previous=self._kept.current))

    def _give_up(self, reason: str) -> None:
        """Go back to the version before, or to the machine's own file."""
        problem = f"version {self.version}: {reason}"
        logger.error("the settings that were rolled out are left: %s", problem)
        self._keep(_Kept(current=self._kept.previous, problem=problem))

    def _keep(self, kept: _Kept) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        keep_private(self._path, kept.model_dump_json().encode())
        self._kept = kept


def _read(path: Path) -> _Kept:
    try:
        return _Kept.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return _Kept()
    except (OSError, ValidationError) as error:
        logger.warning("%s cannot be used, and is not: %s", path, type(error).__name__)
        return _Kept()
