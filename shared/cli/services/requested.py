"""The service that a command line asks for, as it would run in this folder and terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from shared.access.server_folder import CONFIG_NAME
from shared.cli.local.programs import nats_server_path, program_path
from shared.cli.services.catalogue import (
    PROGRAMS,
    ServiceInstallContext,
    awake_service,
    nats_service,
    program_service,
    wired_limit_service,
)
from shared.cli.services.service import Level, SystemService, UserAccount
from shared.cli.services.service_manager import ServiceManagerName
from shared.errors import SettingsError
from shared.folders import cache_folder, data_folder
from shared.settings import load_settings, settings_file

_INHERITED_VARIABLES = (
    *("XDG_CACHE_HOME", "XDG_DATA_HOME"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE"),
)
"""Variables that name folders. Other settings belong in the settings file."""
_LOGS = "Library/Logs/mlx-nats-cluster"


def requested_service(
    name: str,
    arguments: Sequence[str],
    level: Level,
    *,
    config: Path | None,
    folder: Path | None,
    supervisor: ServiceManagerName,
    environment: Mapping[str, str],
) -> SystemService:
    """Return the service `name`.

    Args:
        config: the settings file, as for `settings_file`.
        folder: the folder of the NATS server.

    Raises:
        SettingsError: the service could not run with these arguments.
    """
    context = _context(UserAccount.current(), config, supervisor, environment)
    if name in PROGRAMS:
        if folder is not None:
            raise SettingsError("--folder is for the service nats only")
        return program_service(name, context, load_settings(config), arguments)
    if name == "wired-limit":
        return wired_limit_service(context, _megabytes(arguments, level))
    if arguments:
        raise SettingsError(f"{name} takes no arguments: {arguments[0]!r}")
    if name == "awake":
        return awake_service(context)
    server_folder = (folder or context.data / "access").absolute()
    if not (server_folder / CONFIG_NAME).is_file():
        raise SettingsError(
            f"{server_folder} has no {CONFIG_NAME}. Create it with `cluster auth init`, or name "
            "its folder with --folder"
        )
    return nats_service(context, server_folder)


def logs_folder(account: UserAccount, supervisor: ServiceManagerName) -> Path | None:
    """Return the folder of service logs; None if the supervisor stores them."""
    return account.home / _LOGS if supervisor == "launchd" else None


def _context(
    account: UserAccount,
    config: Path | None,
    supervisor: ServiceManagerName,
    environment: Mapping[str, str],
) -> ServiceInstallContext:
    file = settings_file(config)
    inherited = {name: environment[name] for name in _INHERITED_VARIABLES if name in environment}
    hub = inherited.get("HF_HOME", account.home / ".cache/huggingface")
    hubs = [Path(folder) for folder in (hub, inherited.get("HF_HUB_CACHE")) if folder is not None]
    return ServiceInstallContext(
        account=account,
        program=lambda name: nats_server_path() if name == "nats-server" else program_path(name),
        folder=Path.cwd(),
        config=file.absolute() if file is not None else None,
        environment=inherited,
        logs=logs_folder(account, supervisor),
        data=_in_home(account, data_folder()),
        caches=(_in_home(account, cache_folder()), *hubs),
    )


def _in_home(account: UserAccount, path: Path) -> Path:
    """Return the same folder in the account's home; under `sudo` the home is another one."""
    home = Path.home()
    return account.home / path.relative_to(home) if path.is_relative_to(home) else path


def _megabytes(arguments: Sequence[str], level: Level) -> int:
    if level != "system":
        raise SettingsError("wired-limit is a setting of the machine: it needs --system")
    match arguments:
        case [number] if number.isascii() and number.isdigit() and int(number) > 0:
            return int(number)
        case _:
            raise SettingsError("wired-limit needs one number of MB: wired-limit 57344")
