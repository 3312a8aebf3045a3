"""Who keeps services running here, and what it is told."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from shared.cli.services.launchd import property_list
from shared.cli.services.service import Account, Level, SystemService
from shared.cli.services.systemd import unit

SupervisorName = Literal["launchd", "systemd"]


@dataclass(frozen=True, slots=True)
class ServiceCommand:
    """A command for the supervisor.

    Attributes:
        may_fail: it does where there is nothing to do.
        until_it_fails: ask again until it says that there is nothing, for so many seconds.
    """

    command: tuple[str, ...]
    may_fail: bool = False
    until_it_fails: float = 0.0


class Supervisor(Protocol):
    name: SupervisorName
    tool: str

    def file(self, account: Account, label: str, level: Level) -> Path: ...

    def content(self, service: SystemService, level: Level) -> bytes: ...

    def load(self, service: SystemService, level: Level) -> list[ServiceCommand]:
        """Start it, now and later; in place of the one that runs, if one does."""

    def unload(self, account: Account, label: str, level: Level) -> list[ServiceCommand]:
        """End it, and do not start it again."""

    def forget(self, label: str, level: Level) -> list[ServiceCommand]:
        """When its file is gone."""

    def look(self, account: Account, label: str, level: Level) -> str:
        """The command with which a person sees how it is."""

    def listen(self, service: SystemService, level: Level) -> str:
        """Where a person reads what it says."""


class Launchd:
    name: SupervisorName = "launchd"
    tool = "launchctl"

    def file(self, account: Account, label: str, level: Level) -> Path:
        daemons, agents = Path("/Library/LaunchDaemons"), account.home / "Library/LaunchAgents"
        return (daemons if level == "system" else agents) / f"{label}.plist"

    def content(self, service: SystemService, level: Level) -> bytes:
        return property_list(service, level)

    def load(self, service: SystemService, level: Level) -> list[ServiceCommand]:
        account, label = service.account, service.label
        domain, target = self._domain(account, level), self._target(account, label, level)
        return [
            *self._stop(target, service.stop_s),
            ServiceCommand((self.tool, "enable", target)),
            ServiceCommand((self.tool, "bootstrap", domain, str(self.file(account, label, level)))),
        ]

    def unload(self, account: Account, label: str, level: Level) -> list[ServiceCommand]:
        return self._stop(self._target(account, label, level), _LONGEST_STOP_S)

    def forget(self, label: str, level: Level) -> list[ServiceCommand]:
        return []

    def look(self, account: Account, label: str, level: Level) -> str:
        return f"{self.tool} print {self._target(account, label, level)}"

    def listen(self, service: SystemService, level: Level) -> str:
        log = service.log or service.own_log
        return (
            ", ".join(str(path) for path in (log, service.errors) if path is not None) or "nothing"
        )

    def _stop(self, target: str, stop_s: float) -> list[ServiceCommand]:
        """It is asked to end, and has only ended when launchd does not know it any more."""
        return [
            ServiceCommand((self.tool, "bootout", target), may_fail=True),
            ServiceCommand((self.tool, "print", target), until_it_fails=stop_s + _SLACK_S),
        ]

    def _domain(self, account: Account, level: Level) -> str:
        return "system" if level == "system" else f"gui/{account.number}"

    def _target(self, account: Account, label: str, level: Level) -> str:
        return f"{self._domain(account, level)}/{label}"


class Systemd:
    name: SupervisorName = "systemd"
    tool = "systemctl"

    def __init__(self, user_config: Path | None = None) -> None:
        """
        Args:
            user_config: where it looks for a user's units, unless below the home.
        """
        self._user_config = user_config

    def file(self, account: Account, label: str, level: Level) -> Path:
        own = (self._user_config or account.home / ".config") / "systemd/user"
        return (Path("/etc/systemd/system") if level == "system" else own) / _unit_name(label)

    def content(self, service: SystemService, level: Level) -> bytes:
        return unit(service, level).encode()

    def load(self, service: SystemService, level: Level) -> list[ServiceCommand]:
        name = _unit_name(service.label)
        return [
            self._order(level, "daemon-reload"),
            self._order(level, "enable", name),
            self._order(level, "restart", name),
        ]

    def unload(self, account: Account, label: str, level: Level) -> list[ServiceCommand]:
        return [self._order(level, "disable", "--now", _unit_name(label), may_fail=True)]

    def forget(self, label: str, level: Level) -> list[ServiceCommand]:
        return [
            self._order(level, "daemon-reload", may_fail=True),
            self._order(level, "reset-failed", _unit_name(label), may_fail=True),
        ]

    def look(self, account: Account, label: str, level: Level) -> str:
        return " ".join(self._order(level, "status", label).command)

    def listen(self, service: SystemService, level: Level) -> str:
        whose = "" if level == "system" else "--user "
        return f"journalctl {whose}-u {service.label}"

    def _order(self, level: Level, *words: str, may_fail: bool = False) -> ServiceCommand:
        whose = () if level == "system" else ("--user",)
        return ServiceCommand((self.tool, *whose, *words), may_fail)


_LONGEST_STOP_S = 600.0
_SLACK_S = 5.0


def supervisor(name: SupervisorName) -> Supervisor:
    if name == "launchd":
        return Launchd()
    config = os.environ.get("XDG_CONFIG_HOME")
    return Systemd(Path(config) if config else None)


def supervisor_here() -> Supervisor:
    """This system's."""
    return supervisor("launchd" if sys.platform == "darwin" else "systemd")


def _unit_name(label: str) -> str:
    return f"{label}.service"
