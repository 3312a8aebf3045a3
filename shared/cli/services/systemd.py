"""systemd services: unit files. See systemd.service(5), systemd.exec(5)."""

from collections.abc import Iterable

from shared.cli.services.service import Level, SystemService
from shared.errors import SettingsError

_PAUSE_S = 5
_FILES = 65_536
_INVALID_SETTINGS = 2

_HARDENED = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "RestrictNamespaces=yes",
    "SystemCallArchitectures=native",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
)
"""For all services. Without MemoryDenyWriteExecute, because MLX and CUDA compile at run time."""
_HARDENED_BY_ROOT = (
    "CapabilityBoundingSet=",
    "PrivateTmp=yes",
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "ProtectClock=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
)
"""For system services. Without PrivateDevices, because a worker needs the GPU devices."""


def unit(service: SystemService, level: Level) -> str:
    """Return the unit file of a service.

    Raises:
        SettingsError: a path or argument contains a line break.
    """
    system = level == "system"
    lines = [
        "[Unit]",
        f"Description={_escape_percent(service.description)}",
        *(["Wants=network-online.target", "After=network-online.target"] if system else []),
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={_command(service.command)}",
        f"WorkingDirectory={_escape_percent(str(service.folder))}",
        *(f"Environment={_quoted(f'{k}={v}')}" for k, v in service.environment.items()),
        *([f"User={_escape_percent(service.account.name)}"] if system else []),
        "Restart=on-failure",
        f"RestartSec={_PAUSE_S}",
        f"RestartPreventExitStatus={_INVALID_SETTINGS}",
        "# SIGTERM to the main process only: it ends its child processes after the last stream.",
        "KillMode=mixed",
        f"TimeoutStopSec={service.stop_s}",
        f"LimitNOFILE={_FILES}",
        "UMask=0077",
        *_HARDENED,
        *(_HARDENED_BY_ROOT if system else ()),
        *(f"ReadWritePaths={_quoted(f'-{path}')}" for path in service.writable_folders if system),
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if system else 'default.target'}",
    ]
    return "\n".join(lines) + "\n"


def _command(arguments: Iterable[str]) -> str:
    return " ".join(_quoted(argument.replace("$", "$$")) for argument in arguments)


def _quoted(text: str) -> str:
    escaped = _escape_percent(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if set(escaped) & set(" \t'\";\\") or not text else escaped


def _escape_percent(text: str) -> str:
    """Escape % for systemd.

    Raises:
        SettingsError: the text contains a line break.
    """
    if "\n" in text or "\r" in text:
        raise SettingsError(f"a service file cannot contain a line break: {text!r}")
    return text.replace("%", "%%")
