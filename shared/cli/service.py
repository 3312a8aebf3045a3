"""`cluster service`."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import orjson

from shared.cli.lazy_group import DefaultListGroup
from shared.cli.options import config_option, json_option, prints_errors, version_option
from shared.cli.services.catalogue import MAC_ONLY, SERVICES
from shared.cli.services.installer import install, uninstall
from shared.cli.services.launchd import log_rotation, rotation_file
from shared.cli.services.requested import logs_folder, requested_service
from shared.cli.services.service import Level, UserAccount, label_of
from shared.cli.services.service_manager import (
    ServiceManagerName,
    local_supervisor,
    supervisor_named,
)
from shared.errors import SettingsError

_HELP = f"""Run parts of a cluster as services on this machine: launchd on a Mac, systemd on Linux.

\b
{chr(10).join(f"  {name:12} {what}" for name, what in SERVICES.items())}

A service runs its command as in a terminal in the current folder, and is restarted when it fails.
By default it is a service of this user, which runs while the user is logged in. With --system (and
sudo) it runs from the start of the machine.

\b
  cluster service install worker
  cluster service install gateway -- --host 0.0.0.0 --keys-file keys.json
  cluster service run worker              run it in this terminal, until Ctrl-C
  cluster service show worker             print the service file, install nothing
  cluster service uninstall worker        stop it, delete its file and logs
"""


@click.group("service", cls=DefaultListGroup, help=_HELP)
@version_option("cluster service")
def command() -> None:
    pass


def _level_option(function: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--system/--user", "system", default=False,
        help="A service of the machine, or of this user (default).",
    )(function)  # fmt: skip


def _service_arguments(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--folder",
            type=click.Path(path_type=Path, file_okay=False),
            help="For nats: the folder of its configuration. Default: that of `cluster auth init`.",
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
@prints_errors
def install_command(
    name: str,
    arguments: Sequence[str],
    system: bool,
    config: Path | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Install and start a service. ARGUMENTS are passed to its command."""
    level, supervisor = _level(system), local_supervisor()
    if name in MAC_ONLY and supervisor.name != "launchd":
        raise SettingsError(f"{name} is a service for Macs only")
    if system and os.geteuid() != 0:
        raise SettingsError("--system needs root: run it with sudo")
    service = requested_service(
        name,
        arguments,
        level,
        config=config,
        folder=folder,
        supervisor=supervisor.name,
        environment=os.environ,
    )
    path = install(service, level, supervisor)
    log = service.log or service.self_rotated_log
    if as_json:
        result = {"service": name, "level": level, "file": str(path), "log": log and str(log)}
        click.echo(orjson.dumps(result).decode())
        return
    click.echo(f"{name} runs, and is restarted when it fails: {path}")
    click.echo(f"Status: {supervisor.status_command(service.account, service.label, level)}")
    click.echo(f"Logs: {supervisor.log_hint(service, level)}")
    if log_rotation(service) is not None and not rotation_file(service.label).exists():
        more = "--system " if system else ""
        click.echo(
            "The log is not rotated. To rotate it:\n"
            f"  cluster service show {name} {more}--log-rotation | sudo tee "
            f"{rotation_file(service.label)}",
            err=True,
        )
    if supervisor.name == "systemd" and not system:
        click.echo("To run it without a login too: loginctl enable-linger", err=True)


@command.command("run")
@_service_arguments
@prints_errors
def run_command(
    name: str,
    arguments: Sequence[str],
    system: bool,
    config: Path | None,
    folder: Path | None,
) -> None:
    """Run a service in this terminal: to try it before it is installed, or where there is neither
    launchd nor systemd."""
    if name in MAC_ONLY and sys.platform != "darwin":
        raise SettingsError(f"{name} is a service for Macs only")
    service = requested_service(
        name,
        arguments,
        _level(system),
        config=config,
        folder=folder,
        supervisor="systemd",  # its services write no log files
        environment=os.environ,
    )
    os.chdir(service.folder)
    os.execve(service.command[0], service.command, {**os.environ, **service.environment})


@command.command("uninstall")
@click.argument("name", type=click.Choice(list(SERVICES)), metavar="SERVICE")
@_level_option
@prints_errors
def uninstall_command(name: str, system: bool) -> None:
    """Stop a service, and delete its file and logs."""
    level, supervisor, account = _level(system), local_supervisor(), UserAccount.current()
    if not uninstall(name, account, level, supervisor, logs_folder(account, supervisor.name)):
        other = "" if system else "; is it one with --system?"
        raise SettingsError(f"{name} is not an installed {level} service{other}")
    rotation = rotation_file(label_of(name))
    if supervisor.name == "launchd" and rotation.exists():
        click.echo(f"The log rotation of the machine is not deleted: sudo rm {rotation}", err=True)


@command.command("show")
@_service_arguments
@click.option(
    "--for", "kind", type=click.Choice(["launchd", "systemd"]),
    help="Default: the one of this system.",
)  # fmt: skip
@click.option("--log-rotation", "rotation", is_flag=True, help="Print the newsyslog file instead.")
@prints_errors
def show(
    name: str,
    arguments: Sequence[str],
    system: bool,
    config: Path | None,
    folder: Path | None,
    kind: ServiceManagerName | None,
    rotation: bool,
) -> None:
    """Print the service file that `install` would write."""
    level = _level(system)
    supervisor = supervisor_named(kind) if kind is not None else local_supervisor()
    service = requested_service(
        name,
        arguments,
        level,
        config=config,
        folder=folder,
        supervisor=supervisor.name,
        environment=os.environ,
    )
    if not rotation:
        click.echo(supervisor.unit_content(service, level), nl=False)
    elif (lines := log_rotation(service)) is not None:
        click.echo(lines, nl=False)
    else:
        raise SettingsError(f"{name} with {supervisor.name} has no log file for newsyslog")


@command.command("ls")
@json_option
@prints_errors
def list_services(as_json: bool) -> None:
    """List installed services. The default subcommand."""
    supervisor, account = local_supervisor(), UserAccount.current()
    levels: tuple[Level, ...] = ("user", "system")
    found = [
        {"service": name, "level": level, "file": str(path)}
        for name in SERVICES
        for level in levels
        if (path := supervisor.unit_path(account, label_of(name), level)).exists()
    ]
    if as_json:
        click.echo(orjson.dumps({"services": found}).decode())
        return
    for each in found:
        click.echo(f"{each['service']:12} {each['level']:7} {each['file']}")
    if not found:
        click.echo(
            "No service is installed. To install one: cluster service install worker", err=True
        )


def _level(system: bool) -> Level:
    return "system" if system else "user"
