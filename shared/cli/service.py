"""`cluster service`."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import orjson

from shared.cli.groups import ListingGroup
from shared.cli.options import config_option, json_option, reports_errors, version_option
from shared.cli.services.asked import asked_service, logs_folder
from shared.cli.services.catalogue import MAC_ONLY, SERVICES
from shared.cli.services.installer import install, uninstall
from shared.cli.services.launchd import log_rotation, rotation_file
from shared.cli.services.service import Account, Level, label_of
from shared.cli.services.supervisor import SupervisorName, supervisor, supervisor_here
from shared.errors import SettingsError

_HELP = f"""Have this machine keep parts of a cluster running: launchd on a Mac, systemd on Linux.

\b
{chr(10).join(f"  {name:12} {what}" for name, what in SERVICES.items())}

A service runs as it would in a terminal in this folder, and is started again when it ends with an
error. Of this user by default: it is there while the user is logged in. With --system (and sudo) it
is there from the start of the machine on.

\b
  cluster service install worker
  cluster service install gateway -- --host 0.0.0.0 --keys-file keys.json
  cluster service run worker              the same here in this terminal, until Ctrl-C
  cluster service show worker             what would be written, and nothing is
  cluster service uninstall worker        nothing of it stays
"""


@click.group("service", cls=ListingGroup, help=_HELP)
@version_option("cluster service")
def command() -> None:
    pass


def _level_option(function: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--system/--user", "system", default=False,
        help="Of the machine, or of this user (default).",
    )(function)  # fmt: skip


def _service_arguments(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--folder",
            type=click.Path(path_type=Path, file_okay=False),
            help="Of nats: where its configuration is. Default: that of `cluster auth init`.",
        ),
        config_option,
        _level_option,
        click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
        click.argument("name", type=click.Choice(list(SERVICES)), metavar="SERVICE"),
    ):
        function = option(function)
    return function


@command.command("install")
@_service_arguments
@json_option
@reports_errors
def install_command(
    name: str,
    arguments: Sequence[str],
    system: bool,
    config: Path | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Start a service now, and from now on. ARGUMENTS are those of its command."""
    level, keeper = _level(system), supervisor_here()
    if name in MAC_ONLY and keeper.name != "launchd":
        raise SettingsError(f"{name} is for a Mac")
    if system and os.geteuid() != 0:
        raise SettingsError("--system needs root: run it with sudo")
    service = asked_service(
        name,
        arguments,
        level,
        config=config,
        folder=folder,
        supervisor=keeper.name,
        environment=os.environ,
    )
    path = install(service, level, keeper)
    log = service.log or service.own_log
    if as_json:
        told = {"service": name, "level": level, "file": str(path), "log": log and str(log)}
        click.echo(orjson.dumps(told).decode())
        return
    click.echo(f"{name} runs, and is started again when it fails: {path}")
    click.echo(f"How it is: {keeper.look(service.account, service.label, level)}")
    click.echo(f"What it says: {keeper.listen(service, level)}")
    if log_rotation(service) is not None and not rotation_file(service.label).exists():
        more = "--system " if system else ""
        click.echo(
            "Its log grows until you have it rotated:\n"
            f"  cluster service show {name} {more}--log-rotation | sudo tee "
            f"{rotation_file(service.label)}",
            err=True,
        )
    if keeper.name == "systemd" and not system:
        click.echo("To have it run without a login, too: loginctl enable-linger", err=True)


@command.command("run")
@_service_arguments
@reports_errors
def run_command(
    name: str,
    arguments: Sequence[str],
    system: bool,
    config: Path | None,
    folder: Path | None,
) -> None:
    """Run what a service runs, in this terminal: to look before it is installed, and where there
    is no launchd or systemd."""
    if name in MAC_ONLY and sys.platform != "darwin":
        raise SettingsError(f"{name} is for a Mac")
    service = asked_service(
        name,
        arguments,
        _level(system),
        config=config,
        folder=folder,
        supervisor="systemd",  # whose services write no log files of their own
        environment=os.environ,
    )
    os.chdir(service.folder)
    os.execve(service.command[0], service.command, {**os.environ, **service.environment})


@command.command("uninstall")
@click.argument("name", type=click.Choice(list(SERVICES)), metavar="SERVICE")
@_level_option
@reports_errors
def uninstall_command(name: str, system: bool) -> None:
    """End a service; its file and its logs go."""
    level, keeper, account = _level(system), supervisor_here(), Account.here()
    if not uninstall(name, account, level, keeper, logs_folder(account, keeper.name)):
        other = "" if system else "; with --system?"
        raise SettingsError(f"{name} is no service of this {level}{other}")
    rotation = rotation_file(label_of(name))
    if keeper.name == "launchd" and rotation.exists():
        click.echo(f"This is the machine's, and stays: sudo rm {rotation}", err=True)


@command.command("show")
@_service_arguments
@click.option(
    "--for", "kind", type=click.Choice(["launchd", "systemd"]),
    help="Default: what this system has.",
)  # fmt: skip
@click.option("--log-rotation", "rotation", is_flag=True, help="The file for newsyslog instead.")
@reports_errors
def show(
    name: str,
    arguments: Sequence[str],
    system: bool,
    config: Path | None,
    folder: Path | None,
    kind: SupervisorName | None,
    rotation: bool,
) -> None:
    """Print what `install` would write."""
    level = _level(system)
    keeper = supervisor(kind) if kind is not None else supervisor_here()
    service = asked_service(
        name,
        arguments,
        level,
        config=config,
        folder=folder,
        supervisor=keeper.name,
        environment=os.environ,
    )
    if not rotation:
        click.echo(keeper.content(service, level), nl=False)
    elif (lines := log_rotation(service)) is not None:
        click.echo(lines, nl=False)
    else:
        raise SettingsError(f"newsyslog has nothing to do for {name} with {keeper.name}")


@command.command("ls")
@json_option
@reports_errors
def list_services(as_json: bool) -> None:
    """List the services that are installed (what `cluster service` does alone)."""
    keeper, account = supervisor_here(), Account.here()
    levels: tuple[Level, ...] = ("user", "system")
    found = [
        {"service": name, "level": level, "file": str(path)}
        for name in SERVICES
        for level in levels
        if (path := keeper.file(account, label_of(name), level)).exists()
    ]
    if as_json:
        click.echo(orjson.dumps({"services": found}).decode())
        return
    for each in found:
        click.echo(f"{each['service']:12} {each['level']:7} {each['file']}")
    if not found:
        click.echo("No service is installed; `cluster service install worker` begins.", err=True)


def _level(system: bool) -> Level:
    return "system" if system else "user"
