"""A service, independent of its supervisor."""

import grp
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from shared.errors import SettingsError

Level = Literal["user", "system"]
"""user: runs while the user is logged in. system: runs from the start of the machine."""


@dataclass(frozen=True, slots=True)
class UserAccount:
    """The user account that a service runs as."""

    name: str
    uid: int
    group: str
    home: Path

    @classmethod
    def current(cls) -> Self:
        """Return the account of this process; under `sudo` the account that called sudo.

        Raises:
            SettingsError: the system has no such user.
        """
        sudo_user = os.environ.get("SUDO_USER") if os.geteuid() == 0 else None
        try:
            entry = pwd.getpwnam(sudo_user) if sudo_user else pwd.getpwuid(os.getuid())
            group = grp.getgrgid(entry.pw_gid).gr_name
        except KeyError:
            raise SettingsError(f"this system has no user {sudo_user or os.getuid()}") from None
        home = Path(entry.pw_dir) if sudo_user else Path.home()
        return cls(entry.pw_name, entry.pw_uid, group, home)


@dataclass(frozen=True, slots=True)
class SystemService:
    """
    Attributes:
        folder: working directory.
        environment: additional variables; no secrets, because other users can read them.
        stop_s: time that the service may take to stop.
        log: log file, which the service reopens after a rename; None without one.
        self_rotated_log: log file of a program that rotates it itself.
        stderr_file: stdout and stderr: output before the log is open, and crashes.
        writable_folders: folders that the service writes to.
        restart: whether the service is restarted after an error; False for a one-time command.
        interactive: whether users wait for what the service does.
    """

    name: str
    description: str
    command: tuple[str, ...]
    account: UserAccount
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    stop_s: int = 15
    log: Path | None = None
    self_rotated_log: Path | None = None
    stderr_file: Path | None = None
    writable_folders: tuple[Path, ...] = ()
    restart: bool = True
    interactive: bool = True

    @property
    def label(self) -> str:
        return label_of(self.name)


def label_of(name: str) -> str:
    """Return the name under which the supervisor knows a service."""
    return f"mlx-nats-cluster.{name}"
