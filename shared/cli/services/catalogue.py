"""Which services there are, and what each needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.access.server_folder import CONFIG_NAME
from shared.cli.services.service import Account, SystemService
from shared.errors import SettingsError
from shared.settings import ClusterSettings

_STOP_MARGIN_S = 15
"""Beyond the time that streams have to end."""
_LOG_FILE = "CLUSTER__LOGGING__FILE"
_NATS_LOG_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a service is to run.

    Attributes:
        program: the path of a program by its name.
        folder: where it is started; settings name files from there.
        config: the settings file, if any.
        environment: as `SystemService.environment`.
        logs: where logs go that nobody else keeps; None where the system keeps them.
        data, caches: folders of this user's for this project, and for models.
    """

    account: Account
    program: Callable[[str], str]
    folder: Path
    config: Path | None
    environment: Mapping[str, str]
    logs: Path | None
    data: Path
    caches: tuple[Path, ...]


OURS = ("worker", "controller", "gateway")
MAC_ONLY = ("awake", "wired-limit")
SERVICES: Mapping[str, str] = {
    "nats": "the NATS server, with the folder of `cluster auth init`",
    "controller": "`controller`",
    "gateway": "`gateway`",
    "worker": "`worker`",
    "awake": "keeps a Mac from sleeping, also while nobody asks for anything",
    "wired-limit": "how many MB a Mac's GPU may wire, set at each start (needs --system)",
}


def nats_service(place: Place, server_folder: Path) -> SystemService:
    """
    Args:
        server_folder: with the configuration, and where it keeps what it has to keep.
    """
    own_log = place.logs / "nats.log" if place.logs is not None else None
    log = ["--log", str(own_log), "--log_size_limit", str(_NATS_LOG_BYTES)] if own_log else []
    return SystemService(
        name="nats",
        description="NATS server of an MLX inference cluster",
        command=(place.program("nats-server"), "--config", CONFIG_NAME, *log),
        account=place.account,
        folder=server_folder,
        own_log=own_log,
        errors=_errors(place, "nats"),
        writes=(server_folder,),
    )


def our_service(
    name: str, place: Place, settings: ClusterSettings, arguments: Sequence[str]
) -> SystemService:
    """A service of `OURS`.

    Raises:
        SettingsError: an argument holds a secret.
    """
    _refuse_secrets(name, arguments)
    config = ("--config", str(place.config)) if place.config is not None else ()
    environment = dict(place.environment)
    log = place.logs / f"{name}.log" if place.logs is not None else None
    if log is not None:
        environment[_LOG_FILE] = str(log)
    disk = settings.worker.kv_cache.disk_path
    writes = (place.data, *place.caches, *([Path(disk).expanduser()] if disk else []))
    return SystemService(
        name=name,
        description=f"{name.capitalize()} of an MLX inference cluster",
        command=(place.program(name), *config, *arguments),
        account=place.account,
        folder=place.folder,
        environment=environment,
        stop_s=_stop_s(name, settings),
        log=log,
        errors=_errors(place, name),
        writes=writes,
    )


def awake_service(place: Place) -> SystemService:
    return SystemService(
        name="awake",
        description="Keeps this Mac from sleeping while it serves",
        command=("/usr/bin/caffeinate", "-is"),
        account=place.account,
        folder=place.account.home,
        interactive=False,
    )


def wired_limit_service(place: Place, megabytes: int) -> SystemService:
    root = Account("root", 0, "wheel", Path("/var/root"))
    return SystemService(
        name="wired-limit",
        description="What the GPU of this Mac may wire",
        command=("/usr/sbin/sysctl", f"iogpu.wired_limit_mb={megabytes}"),
        account=root,
        folder=Path("/"),
        stays=False,
        interactive=False,
    )


def _stop_s(name: str, settings: ClusterSettings) -> int:
    drain_ms = {
        "worker": settings.worker.drain_timeout_ms,
        "gateway": settings.gateway.drain_timeout_ms,
    }.get(name, 0)
    return -(-drain_ms // 1000) + _STOP_MARGIN_S


def _errors(place: Place, name: str) -> Path | None:
    return place.logs / f"{name}.err" if place.logs is not None else None


def _refuse_secrets(name: str, arguments: Sequence[str]) -> None:
    for argument in arguments:
        if argument.startswith("--token") or ("://" in argument and "@" in argument):
            raise SettingsError(
                "a service's file is no place for a secret, others can read it: "
                f"`{name} join` keeps one, or `nats.token` in a settings file for your eyes only"
            )
