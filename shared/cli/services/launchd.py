"""Services as launchd keeps them: property lists, and the lines of newsyslog for their logs.

See launchd.plist(5), newsyslog.conf(5).
"""

import plistlib
from pathlib import Path
from typing import Any

from shared.cli.services.service import Level, SystemService

_PAUSE_S = 30
"""Between two starts, at least. It cannot tell wrong settings, with which no start helps, from
anything else: so one that ends at once is tried twice a minute, and one that ran longer at once."""
_FILES = 8192
"""launchd gives 256."""
_KEPT_LOGS = 5
_LOG_KB = 10_240


def property_list(service: SystemService, level: Level) -> bytes:
    """What launchd is given."""
    values: dict[str, Any] = {
        "Label": service.label,
        "ProgramArguments": list(service.command),
        "WorkingDirectory": str(service.folder),
        "RunAtLoad": True,
        # Interactive: launchd throttles neither processor nor disk. With any other type, none at
        # all included, it does, and every token passes through these processes.
        "ProcessType": "Interactive" if service.interactive else "Background",
    }
    environment = dict(service.environment)
    if level == "system":
        values["UserName"] = service.account.name
        environment = {"HOME": str(service.account.home), **environment}
    if environment:
        values["EnvironmentVariables"] = environment
    if service.stays:
        values["KeepAlive"] = {
            "SuccessfulExit": False
        }  # who drained, or was asked to end, stays away
        values["ThrottleInterval"] = _PAUSE_S
        values["ExitTimeOut"] = service.stop_s
        values["SoftResourceLimits"] = {"NumberOfFiles": _FILES}
        values["HardResourceLimits"] = {"NumberOfFiles": _FILES}
    if service.errors is not None:
        values["StandardOutPath"] = values["StandardErrorPath"] = str(service.errors)
        values["Umask"] = 0o077
    return plistlib.dumps(values, sort_keys=False)


def log_rotation(service: SystemService) -> str | None:
    """The line for newsyslog; None for a service whose log needs none."""
    if service.log is None:
        return None
    owner = f"{service.account.name}:{service.account.group}"
    # J: packed. N: nobody is told; the log is begun anew by who writes it.
    return (
        "# logfilename  owner:group  mode  count  size(KB)  when  flags\n"
        f"{service.log}  {owner}  600  {_KEPT_LOGS}  {_LOG_KB}  *  JN\n"
    )


def rotation_file(label: str) -> Path:
    return Path("/etc/newsyslog.d") / f"{label}.conf"
