"""launchd services: property lists, and newsyslog lines for their logs.

See launchd.plist(5), newsyslog.conf(5).
"""

import plistlib
from pathlib import Path
from typing import Any

from shared.cli.services.service import Level, SystemService

_PAUSE_S = 30
"""Minimum time between two starts. launchd cannot recognize invalid settings, which no restart
repairs: a service that ends at once is started twice a minute, one that ran longer at once."""
_FILES = 8192
"""The default of launchd is 256."""
_LOG_COUNT = 5
_LOG_KB = 10_240


def property_list(service: SystemService, level: Level) -> bytes:
    """Return the property list of a service."""
    values: dict[str, Any] = {
        "Label": service.label,
        "ProgramArguments": list(service.command),
        "WorkingDirectory": str(service.folder),
        "RunAtLoad": True,
        # Interactive: launchd throttles neither CPU nor disk. It does with any other type and
        # without a type, and every token passes through these processes.
        "ProcessType": "Interactive" if service.interactive else "Background",
    }
    environment = dict(service.environment)
    if level == "system":
        values["UserName"] = service.account.name
        environment = {"HOME": str(service.account.home), **environment}
    if environment:
        values["EnvironmentVariables"] = environment
    if service.restart:
        values["KeepAlive"] = {
            "SuccessfulExit": False
        }  # a service that drained or was stopped is not restarted
        values["ThrottleInterval"] = _PAUSE_S
        values["ExitTimeOut"] = service.stop_s
        values["SoftResourceLimits"] = {"NumberOfFiles": _FILES}
        values["HardResourceLimits"] = {"NumberOfFiles": _FILES}
    if service.stderr_file is not None:
        values["StandardOutPath"] = values["StandardErrorPath"] = str(service.stderr_file)
        values["Umask"] = 0o077
    return plistlib.dumps(values, sort_keys=False)


def log_rotation(service: SystemService) -> str | None:
    """Return the line for newsyslog; None if the service has no log to rotate."""
    if service.log is None:
        return None
    owner = f"{service.account.name}:{service.account.group}"
    # J: compressed. N: no process is signalled; the service reopens the log itself.
    return (
        "# logfilename  owner:group  mode  count  size(KB)  when  flags\n"
        f"{service.log}  {owner}  600  {_LOG_COUNT}  {_LOG_KB}  *  JN\n"
    )


def rotation_file(label: str) -> Path:
    return Path("/etc/newsyslog.d") / f"{label}.conf"
