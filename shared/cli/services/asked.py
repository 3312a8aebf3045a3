"""The service that somebody asks for, as it would run in this folder and terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from shared.access.server_folder import CONFIG_NAME
from shared.cli.local.programs import nats_server, our_program
from shared.cli.services.catalogue import (
    OURS,
    Place,
    awake_service,
    nats_service,
    our_service,
    wired_limit_service,
)
from shared.cli.services.service import Account, Level, SystemService
from shared.cli.services.supervisor import SupervisorName
from shared.errors import SettingsError
from shared.folders import cache_folder, data_folder
from shared.settings import load_settings, settings_file

_CARRIED = (
    *("XDG_CACHE_HOME", "XDG_DATA_HOME"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE"),
)
"""Variables that say where files are. All else belongs into the settings file."""
_LOGS = "Library/Logs/mlx-nats-cluster"


def asked_service(
    name: str,
    arguments: Sequence[str],
    level: Level,
    *,
    config: Path | None,
    folder: Path | None,
    supervisor: SupervisorName,
    environment: Mapping[str, str],
) -> SystemService:
    """
    Args:
        config: the settings file, as `settings_file` has it.
        folder: of the NATS server.

    Raises:
        SettingsError: it could not run like that.
    """
    place = _place(Account.here(), config, supervisor, environment)
    if name in OURS:
        if folder is not None:
            raise SettingsError("--folder is for the service nats")
        return our_service(name, place, load_settings(config), arguments)
    if name == "wired-limit":
        return wired_limit_service(place, _megabytes(arguments, level))
    if arguments:
        raise SettingsError(f"{name} takes no arguments: {arguments[0]!r}")
    if name == "awake":
        return awake_service(place)
    server_folder = (folder or place.data / "access").absolute()
    if not (server_folder / CONFIG_NAME).is_file():
        raise SettingsError(
            f"{server_folder} has no {CONFIG_NAME}: `cluster auth init` makes it, or name with "
            "--folder where it is"
        )
    return nats_service(place, server_folder)


def logs_folder(account: Account, supervisor: SupervisorName) -> Path | None:
    """Where services write what they say; None where the supervisor keeps it."""
    return account.home / _LOGS if supervisor == "launchd" else None


def _place(
    account: Account,
    config: Path | None,
    supervisor: SupervisorName,
    environment: Mapping[str, str],
) -> Place:
    file = settings_file(config)
    carried = {name: environment[name] for name in _CARRIED if name in environment}
    hub = carried.get("HF_HOME", account.home / ".cache/huggingface")
    hubs = [Path(folder) for folder in (hub, carried.get("HF_HUB_CACHE")) if folder is not None]
    return Place(
        account=account,
        program=lambda name: nats_server() if name == "nats-server" else our_program(name),
        folder=Path.cwd(),
        config=file.absolute() if file is not None else None,
        environment=carried,
        logs=logs_folder(account, supervisor),
        data=_of(account, data_folder()),
        caches=(_of(account, cache_folder()), *hubs),
    )


def _of(account: Account, path: Path) -> Path:
    """The same folder of the account's home: `sudo` may have another."""
    home = Path.home()
    return account.home / path.relative_to(home) if path.is_relative_to(home) else path


def _megabytes(arguments: Sequence[str], level: Level) -> int:
    if level != "system":
        raise SettingsError("wired-limit is the machine's: it needs --system")
    match arguments:
        case [number] if number.isascii() and number.isdigit() and int(number) > 0:
            return int(number)
        case _:
            raise SettingsError("wired-limit needs one number of MB: wired-limit 57344")
