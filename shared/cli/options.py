"""Options that commands share, and how errors are printed."""

import errno
import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from shared.access.stored_memberships import MemberProgram, joined_settings
from shared.errors import ClusterError, SettingsError
from shared.folders import data_folder
from shared.settings import ClusterSettings, load_settings
from shared.settings.overrides import WorkerProperties
from shared.settings.rolled_out import RolledOutVersion
from shared.terminal_text import escaped
from shared.version import VERSION

P = ParamSpec("P")
R = TypeVar("R")

EXIT_FAILURE = 1
EXIT_USAGE = 2
_DISK_ERRORS = {
    errno.ENOSPC: "free some disk space, and try again",
    errno.EDQUOT: "free some of your disk quota, and try again",
    errno.EROFS: "the file system is read-only",
}
"""Errors of the disk that are not faults of the program, and what to do."""


def version_option(command: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    return click.version_option(VERSION, prog_name=command)


def config_option(function: Callable[P, R]) -> Callable[P, R]:
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="Settings file. Default: $CLUSTER_CONFIG, else config/cluster.yaml if it exists.",
    )(function)


def settings_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add --nats, --token and --config."""
    for option in (
        config_option,
        click.option("--token", help="Token of the NATS server, if the server requires one."),
        click.option(
            "--nats", metavar="URL", help="NATS server, for example nats://192.168.1.20:4222."
        ),
    ):
        function = option(function)
    return function


def reject_empty(_: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Reject an empty value; a click callback for options and arguments that are names.

    Raises:
        BadParameter: a value is empty.
    """
    for name in value if isinstance(value, tuple) else (value,):
        if name == "":
            raise click.BadParameter("must not be empty", param=parameter)
    return value


def json_option(function: Callable[P, R]) -> Callable[P, R]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(
        function
    )


def no_discovery_option(function: Callable[P, R]) -> Callable[P, R]:
    return click.option(
        "--no-discovery",
        is_flag=True,
        help="Do not announce the cluster on the local network, and do not search for one there.",
    )(function)


def read_settings(
    config: Path | None,
    nats: str | None,
    token: str | None,
    flags: dict[str, Any] | None = None,
    *,
    command: MemberProgram | None = None,
    rolled_out: RolledOutVersion | None = None,
    machine: Callable[[ClusterSettings], WorkerProperties] | None = None,
) -> ClusterSettings:
    """Load the settings and apply the connection options.

    Args:
        command: the command whose membership is used if this machine joined a cluster.
        rolled_out, machine: as for `load_settings`.

    Raises:
        SettingsError: as for `load_settings`.
    """
    merged = dict(flags or {})
    connection: dict[str, Any] = {}
    if nats is not None:
        connection["servers"] = [server.strip() for server in nats.split(",")]
    if token is not None:
        connection["token"] = token
    if connection:
        merged["nats"] = connection
    joined = joined_settings(command) if command is not None else None
    return load_settings(config, merged, joined, rolled_out=rolled_out, machine=machine)


def print_error(error: ClusterError, *, as_json: bool) -> None:
    """Print an error on stderr as one line."""
    if as_json:
        body = {"code": error.code, "message": error.message, "param": error.param}
        # Not orjson: names from outside may contain text that is not valid UTF-8.
        click.echo(json.dumps({"error": body}), err=True)
    else:
        click.echo(f"{click.style('error:', fg='red')} {escaped(error.message)}", err=True)


def prints_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Turn a `ClusterError` into one line on stderr (JSON with --json) and exit status 1.

    Settings errors exit with 2, as invalid options do. A full or read-only disk is one line too.
    """

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except ClusterError as error:
            print_error(error, as_json=bool(kwargs.get("as_json")))
            sys.exit(EXIT_USAGE if error.code == "settings" else EXIT_FAILURE)
        except OSError as error:
            if (advice := _DISK_ERRORS.get(error.errno or 0)) is None:
                raise
            path = error.filename or data_folder()
            print_error(
                SettingsError(f"cannot write to {path}: {error.strerror}; {advice}"),
                as_json=bool(kwargs.get("as_json")),
            )
            sys.exit(EXIT_FAILURE)

    return wrapper
