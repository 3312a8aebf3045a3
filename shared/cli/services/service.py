"""What a service is, whoever keeps it running."""

import grp
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from shared.errors import SettingsError

Level = Literal["user", "system"]
"""Of a user, and there while that user is logged in; or of the machine, from its start on."""


@dataclass(frozen=True, slots=True)
class Account:
    """As whom a service runs."""

    name: str
    number: int
    group: str
    home: Path

    @classmethod
    def here(cls) -> Self:
        """Who asks; behind `sudo` who asked it.

        Raises:
            SettingsError: the system knows no such user.
        """
        asked = os.environ.get("SUDO_USER") if os.geteuid() == 0 else None
        try:
            entry = pwd.getpwnam(asked) if asked else pwd.getpwuid(os.getuid())
            group = grp.getgrgid(entry.pw_gid).gr_name
        except KeyError:
            raise SettingsError(f"this system knows no user {asked or os.getuid()}") from None
        home = Path(entry.pw_dir) if asked else Path.home()
        return cls(entry.pw_name, entry.pw_uid, group, home)


@dataclass(frozen=True, slots=True)
class SystemService:
    """
    Attributes:
        folder: where it is started.
        environment: beside what the system gives it; no secrets, others can read it.
        stop_s: how long it may take to end when it is asked to.
        log: a file of lines that is begun anew when it is renamed; None where it writes none.
        own_log: the file of a program that rotates it by itself.
        errors: what it says before it has a log, and what ends it.
        writes: folders that it writes to.
        stays: it is started again when it ended with an error; False for what is done once.
        interactive: somebody waits for what it does.
    """

    name: str
    description: str
    command: tuple[str, ...]
    account: Account
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    stop_s: int = 15
    log: Path | None = None
    own_log: Path | None = None
    errors: Path | None = None
    writes: tuple[Path, ...] = ()
    stays: bool = True
    interactive: bool = True

    @property
    def label(self) -> str:
        return label_of(self.name)


def label_of(name: str) -> str:
    """What its supervisor calls a service."""
    return f"mlx-nats-cluster.{name}"
