"""The supervisors launchd and systemd: paths of service files, and commands."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from shared.cli.services.launchd import property_list
from shared.cli.services.service import Level, SystemService, UserAccount
from shared.cli.services.systemd import unit

ServiceManagerName = Literal["launchd", "systemd"]


@dataclass(frozen=True, slots=True)
class ServiceManagerCommand:
    """A command for the supervisor.

    Attributes:
        may_fail: whether a failure is ignored, because there may be nothing to do.
        retry_until_fails_s: repeat the command until it fails, for at most so many seconds.
    """

    command: tuple[str, ...]
    may_fail: bool = False
    retry_until_fails_s: float = 0.0


class ServiceManager(Protocol):
    name: ServiceManagerName
    tool: str

    def unit_path(self, account: UserAccount, label: str, level: Level) -> Path: ...

    def unit_content(self, service: SystemService, level: Level) -> bytes: ...

    def start_commands(self, service: SystemService, level: Level) -> list[ServiceManagerCommand]:
        """Return commands that enable a service and start or restart it."""

    def stop_commands(
        self, account: UserAccount, label: str, level: Level
    ) -> list[ServiceManagerCommand]:
        """Return commands that stop and disable a service."""

    def cleanup_commands(self, label: str, level: Level) -> list[ServiceManagerCommand]:
        """Return commands to run after the service file was deleted."""

    def status_command(self, account: UserAccount, label: str, level: Level) -> str:
        """Return the command that shows the status of a service."""

    def log_hint(self, service: SystemService, level: Level) -> str:
        """Return where the logs of a service are: files, or a command."""


class LaunchdCommands:
    name: ServiceManagerName = "launchd"
    tool = "launchctl"

    def unit_path(self, account: UserAccount, label: str, level: Level) -> Path:
        daemons, agents = Path("/Library/LaunchDaemons"), account.home / "Library/LaunchAgents"
        return (daemons if level == "system" else agents) / f"{label}.plist"

    def unit_content(self, service: SystemService, level: Level) -> bytes:
        return property_list(service, level)

    def start_commands(self, service: SystemService, level: Level) -> list[ServiceManagerCommand]:
        account, label = service.account, service.label
        domain, target = self._domain(account, level), self._target(account, label, level)
        return [
            *self._stop(target, service.stop_s),
            ServiceManagerCommand((self.tool, "enable", target)),
            ServiceManagerCommand(
                (self.tool, "bootstrap", domain, str(self.unit_path(account, label, level)))
            ),
        ]

    def stop_commands(
        self, account: UserAccount, label: str, level: Level
    ) -> list[ServiceManagerCommand]:
        return self._stop(self._target(account, label, level), _LONGEST_STOP_S)

    def cleanup_commands(self, label: str, level: Level) -> list[ServiceManagerCommand]:
        return []

    def status_command(self, account: UserAccount, label: str, level: Level) -> str:
        return f"{self.tool} print {self._target(account, label, level)}"

    def log_hint(self, service: SystemService, level: Level) -> str:
        log = service.log or service.self_rotated_log
        return (
            ", ".join(str(path) for path in (log, service.stderr_file) if path is not None)
            or "nothing"
        )

    def _stop(self, target: str, stop_s: float) -> list[ServiceManagerCommand]:
        """Return commands that stop a service; it has ended when launchd no longer lists it."""
        return [
            ServiceManagerCommand((self.tool, "bootout", target), may_fail=True),
            ServiceManagerCommand(
                (self.tool, "print", target), retry_until_fails_s=stop_s + _SLACK_S
            ),
        ]

    def _domain(self, account: UserAccount, level: Level) -> str:
        return "system" if level == "system" else f"gui/{account.uid}"

    def _target(self, account: UserAccount, label: str, level: Level) -> str:
        return f"{self._domain(account, level)}/{label}"


class SystemdCommands:
    name: ServiceManagerName = "systemd"
    tool = "systemctl"

    def __init__(self, user_config: Path | None = None) -> None:
        """
        Args:
            user_config: configuration folder of the user; None for ~/.config.
        """
        self._user_config = user_config

    def unit_path(self, account: UserAccount, label: str, level: Level) -> Path:
        own = (self._user_config or account.home / ".config") / "systemd/user"
        return (Path("/etc/systemd/system") if level == "system" else own) / _unit_name(label)

    def unit_content(self, service: SystemService, level: Level) -> bytes:
        return unit(service, level).encode()

    def start_commands(self, service: SystemService, level: Level) -> list[ServiceManagerCommand]:
        name = _unit_name(service.label)
        return [
            self._systemctl(level, "daemon-reload"),
            self._systemctl(level, "enable", name),
            self._systemctl(level, "restart", name),
        ]

    def stop_commands(
        self, account: UserAccount, label: str, level: Level
    ) -> list[ServiceManagerCommand]:
        return [self._systemctl(level, "disable", "--now", _unit_name(label), may_fail=True)]

    def cleanup_commands(self, label: str, level: Level) -> list[ServiceManagerCommand]:
        return [
            self._systemctl(level, "daemon-reload", may_fail=True),
            self._systemctl(level, "reset-failed", _unit_name(label), may_fail=True),
        ]

    def status_command(self, account: UserAccount, label: str, level: Level) -> str:
        return " ".join(self._systemctl(level, "status", label).command)

    def log_hint(self, service: SystemService, level: Level) -> str:
        whose = "" if level == "system" else "--user "
        return f"journalctl {whose}-u {service.label}"

    def _systemctl(
        self, level: Level, *words: str, may_fail: bool = False
    ) -> ServiceManagerCommand:
        whose = () if level == "system" else ("--user",)
        return ServiceManagerCommand((self.tool, *whose, *words), may_fail)


_LONGEST_STOP_S = 600.0
_SLACK_S = 5.0


def supervisor_named(name: ServiceManagerName) -> ServiceManager:
    if name == "launchd":
        return LaunchdCommands()
    config = os.environ.get("XDG_CONFIG_HOME")
    return SystemdCommands(Path(config) if config else None)


def local_supervisor() -> ServiceManager:
    """Return the supervisor of this system."""
    return supervisor_named("launchd" if sys.platform == "darwin" else "systemd")


def _unit_name(label: str) -> str:
    return f"{label}.service"
