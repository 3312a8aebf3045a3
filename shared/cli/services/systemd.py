"""Services as systemd keeps them: unit files. See systemd.service(5), systemd.exec(5)."""

from collections.abc import Iterable

from shared.cli.services.service import Level, SystemService
from shared.errors import SettingsError

_PAUSE_S = 5
_FILES = 65_536
_WRONG_SETTINGS = 2

_HARDENED = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "RestrictNamespaces=yes",
    "SystemCallArchitectures=native",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
)
"""What holds for a user's own services too. MemoryDenyWriteExecute is not among it: MLX and CUDA
compile while they run."""
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
"""PrivateDevices is not among it: a worker needs the GPU's."""


def unit(service: SystemService, level: Level) -> str:
    """The unit file.

    Raises:
        SettingsError: a path or argument has a line break.
    """
    system = level == "system"
    lines = [
        "[Unit]",
        f"Description={_plain(service.description)}",
        *(["Wants=network-online.target", "After=network-online.target"] if system else []),
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={_command(service.command)}",
        f"WorkingDirectory={_plain(str(service.folder))}",
        *(f"Environment={_quoted(f'{k}={v}')}" for k, v in service.environment.items()),
        *([f"User={_plain(service.account.name)}"] if system else []),
        "Restart=on-failure",
        f"RestartSec={_PAUSE_S}",
        f"RestartPreventExitStatus={_WRONG_SETTINGS}",
        "# SIGTERM to the command alone: it ends what it has started when its streams have ended.",
        "KillMode=mixed",
        f"TimeoutStopSec={service.stop_s}",
        f"LimitNOFILE={_FILES}",
        "UMask=0077",
        *_HARDENED,
        *(_HARDENED_BY_ROOT if system else ()),
        *(f"ReadWritePaths={_quoted(f'-{path}')}" for path in service.writes if system),
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if system else 'default.target'}",
    ]
    return "\n".join(lines) + "\n"


def _command(arguments: Iterable[str]) -> str:
    return " ".join(_quoted(argument.replace("$", "$$")) for argument in arguments)


def _quoted(text: str) -> str:
    escaped = _plain(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if set(escaped) & set(" \t'\";\\") or not text else escaped


def _plain(text: str) -> str:
    """With nothing in it that systemd would take for something else."""
    if "\n" in text or "\r" in text:
        raise SettingsError(f"a service cannot have a line break: {text!r}")
    return text.replace("%", "%%")
