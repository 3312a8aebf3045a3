"""The services that can be installed, and what each needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.access.server_folder import CONFIG_NAME
from shared.cli.services.service import SystemService, UserAccount
from shared.errors import SettingsError
from shared.settings import ClusterSettings

_STOP_MARGIN_S = 15
"""Added to the drain timeout."""
_LOG_FILE = "CLUSTER__LOGGING__FILE"
_NATS_LOG_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class ServiceInstallContext:
    """Paths and account for a service.

    Attributes:
        program: returns the path of a program.
        folder: working directory; relative paths in the settings start there.
        config: the settings file, if any.
        environment: as `SystemService.environment`.
        logs: folder of log files; None if the supervisor stores the logs.
        data, caches: folders of the user for this project and for models.
    """

    account: UserAccount
    program: Callable[[str], str]
    folder: Path
    config: Path | None
    environment: Mapping[str, str]
    logs: Path | None
    data: Path
    caches: tuple[Path, ...]


PROGRAMS = ("worker", "controller", "gateway")
MAC_ONLY = ("awake", "wired-limit")
SERVICES: Mapping[str, str] = {
    "nats": "the NATS server, with the folder of `cluster auth init`",
    "controller": "`controller`",
    "gateway": "`gateway`",
    "worker": "`worker`",
    "awake": "keeps a Mac awake, also without requests",
    "wired-limit": "sets how many MB the GPU of a Mac may wire, at each start (needs --system)",
}


def nats_service(context: ServiceInstallContext, server_folder: Path) -> SystemService:
    """Return the service of the NATS server.

    Args:
        server_folder: has the configuration, and receives the data of the server.
    """
    self_rotated_log = context.logs / "nats.log" if context.logs is not None else None
    log = (
        ["--log", str(self_rotated_log), "--log_size_limit", str(_NATS_LOG_BYTES)]
        if self_rotated_log
        else []
    )
    return SystemService(
        name="nats",
        description="NATS server of an MLX inference cluster",
        command=(context.program("nats-server"), "--config", CONFIG_NAME, *log),
        account=context.account,
        folder=server_folder,
        self_rotated_log=self_rotated_log,
        stderr_file=_stderr_file(context, "nats"),
        writable_folders=(server_folder,),
    )


def program_service(
    name: str, context: ServiceInstallContext, settings: ClusterSettings, arguments: Sequence[str]
) -> SystemService:
    """Return the service of a command in `PROGRAMS`.

    Raises:
        SettingsError: an argument contains a secret.
    """
    _refuse_secrets(name, arguments)
    config = ("--config", str(context.config)) if context.config is not None else ()
    environment = dict(context.environment)
    log = context.logs / f"{name}.log" if context.logs is not None else None
    if log is not None:
        environment[_LOG_FILE] = str(log)
    disk = settings.worker.kv_cache.disk_path
    writes = (context.data, *context.caches, *([Path(disk).expanduser()] if disk else []))
    return SystemService(
        name=name,
        description=f"{name.capitalize()} of an MLX inference cluster",
        command=(context.program(name), *config, *arguments),
        account=context.account,
        folder=context.folder,
        environment=environment,
        stop_s=_stop_s(name, settings),
        log=log,
        stderr_file=_stderr_file(context, name),
        writable_folders=writes,
    )


def awake_service(context: ServiceInstallContext) -> SystemService:
    return SystemService(
        name="awake",
        description="Keeps this Mac from sleeping while it serves",
        command=("/usr/bin/caffeinate", "-is"),
        account=context.account,
        folder=context.account.home,
        interactive=False,
    )


def wired_limit_service(context: ServiceInstallContext, megabytes: int) -> SystemService:
    root = UserAccount("root", 0, "wheel", Path("/var/root"))
    return SystemService(
        name="wired-limit",
        description="What the GPU of this Mac may wire",
        command=("/usr/sbin/sysctl", f"iogpu.wired_limit_mb={megabytes}"),
        account=root,
        folder=Path("/"),
        restart=False,
        interactive=False,
    )


def _stop_s(name: str, settings: ClusterSettings) -> int:
    drain_ms = {
        "worker": settings.worker.drain_timeout_ms,
        "gateway": settings.gateway.drain_timeout_ms,
    }.get(name, 0)
    return -(-drain_ms // 1000) + _STOP_MARGIN_S


def _stderr_file(context: ServiceInstallContext, name: str) -> Path | None:
    return context.logs / f"{name}.err" if context.logs is not None else None


def _refuse_secrets(name: str, arguments: Sequence[str]) -> None:
    for argument in arguments:
        if argument.startswith("--token") or ("://" in argument and "@" in argument):
            raise SettingsError(
                "other users can read a service file, so it must not contain a secret. Use "
                f"`{name} join`, or `nats.token` in a settings file that only you can read"
            )
