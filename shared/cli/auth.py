"""`cluster auth`."""

import contextlib
import datetime
import getpass
import os
import shlex
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import orjson
import psutil
from rich.console import Console

from shared.access.archive import back_up, restore
from shared.access.folder import AccessFolder, new_listening
from shared.access.membership import Membership
from shared.access.roles import ROLES, Role
from shared.access.server_folder import CONFIG_NAME, PID_NAME, ServerFolder
from shared.access.stored_memberships import join, membership
from shared.cli.groups import ListingGroup
from shared.cli.options import json_option, not_empty, reports_errors, version_option
from shared.cli.views.users import user_table
from shared.folders import data_folder
from shared.ids import name_from

_HELP = """Say who may take part: keys, certificates, and a NATS server that asks for them.

One machine keeps all that in a folder. Everybody else gets a token, one line to paste there. A
server that runs with the folder's configuration takes every change at once.

\b
  cluster auth init --host mac-1.local
  cluster auth add worker mac-2               prints the token to paste on mac-2
  cluster auth add client ada
  cluster auth rotate client ada              a new key; the one before is taken until
  cluster auth retire client ada              that
  cluster auth rm client ada

  cluster auth init --clustered --host mac-1.local --host mac-2.local --host mac-3.local
                                              three servers that are one: one may be lost
"""

_COPY_AGAIN = """Copy the folders in {servers} to their machines again, and in each, there:
  nats-server --signal reload=nats-server.pid"""
_ROUTE_PORT = 6222
_START_ONE = "  nats-server --config {config}"
_START_SEVERAL = """  Copy each folder in {servers} to its machine, and there, in that folder:
  nats-server --config nats-server.json"""
_NEXT = """
Next:
{start}
  cluster auth add controller {name} | controller join     and then: controller
  cluster auth add worker NAME        prints a token; on that Mac: worker join
  cluster auth add client NAME        prints a token for a person; there: cluster join"""


@click.group(cls=ListingGroup, help=_HELP)
@version_option("cluster auth")
def command() -> None:
    pass


def _folder_option(function: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--folder",
        type=click.Path(path_type=Path, file_okay=False),
        default=lambda: data_folder() / "access",
        help="Where all that is kept. Default: among this user's data.",
    )(function)


def _user_arguments(function: Callable[..., None]) -> Callable[..., None]:
    for argument in (
        click.argument("name", callback=not_empty),
        click.argument("role", type=click.Choice(ROLES)),
    ):
        function = argument(function)
    return function


def _hosts_option(help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--host", "hosts", multiple=True, callback=not_empty, metavar="NAME", help=help
    )


@command.command("init")
@_hosts_option("Name or address of the NATS server, once for each. Default: this machine's name.")
@click.option("--port", type=click.IntRange(1, 65535), default=4222, show_default=True)
@click.option(
    "--clustered",
    is_flag=True,
    help="Each --host is a server of its own, and all of them are one: three or more.",
)
@click.option(
    "--route-port",
    type=click.IntRange(1, 65535),
    default=_ROUTE_PORT,
    show_default=True,
    help="Where several servers listen for each other.",
)
@_folder_option
@json_option
@reports_errors
def init(
    hosts: Sequence[str], port: int, clustered: bool, route_port: int, folder: Path, as_json: bool
) -> None:
    """Begin: an authority, a certificate for servers, an administrator."""
    listening = new_listening(
        names=list(hosts) or [socket.gethostname()],
        port=port,
        route_port=route_port if clustered else None,
    )
    made = AccessFolder.create(folder, listening)
    admin = name_from(getpass.getuser())
    with made.changing():
        member = made.add("admin", admin, now=_now())
    joins = membership("cluster") is None
    if joins:
        join(member)
    configs = [str(server.path / CONFIG_NAME) for server in made.servers]
    if as_json:
        told = {
            "folder": str(folder),
            "server_config": configs[0],
            "server_configs": configs,
            "admin": admin,
            "joined": joins,
        }
        click.echo(orjson.dumps(told).decode())
        return
    click.echo(f"Made {folder}. It has every secret: keep it where only you can read it.")
    if joins:
        click.echo(f"`cluster` on this machine is the administrator {admin} from now on.")
    else:
        click.echo(
            "`cluster` on this machine has joined another cluster. To look after this one:\n"
            f"  cluster auth token admin {admin} | cluster join"
        )
    start = _START_SEVERAL if clustered else _START_ONE
    start = start.format(config=shlex.quote(configs[0]), servers=shlex.quote(f"{folder}/servers"))
    click.echo(_NEXT.format(start=start, name=name_from(socket.gethostname())))


@command.command("ls")
@_folder_option
@json_option
@reports_errors
def list_users(folder: Path, as_json: bool) -> None:
    """List who may take part (what `cluster auth` does alone)."""
    users = sorted(AccessFolder(folder).users, key=lambda user: (user.role, user.name))
    if as_json:
        click.echo(orjson.dumps({"users": [user.model_dump() for user in users]}).decode())
        return
    console = Console(highlight=False)
    for line in user_table(users, console.width):
        console.print(line, soft_wrap=True)


@command.command("add")
@_user_arguments
@_folder_option
@json_option
@reports_errors
def add(role: Role, name: str, folder: Path, as_json: bool) -> None:
    """Let somebody take part; prints the token."""
    with _changing(folder) as access:
        member = access.add(role, name, now=_now())
    _tell(member, as_json=as_json)


@command.command("token")
@_user_arguments
@_folder_option
@json_option
@reports_errors
def token(role: Role, name: str, folder: Path, as_json: bool) -> None:
    """Print a token again."""
    _tell(AccessFolder(folder).membership(role, name), as_json=as_json)


@command.command("rotate")
@_user_arguments
@_folder_option
@json_option
@reports_errors
def rotate(role: Role, name: str, folder: Path, as_json: bool) -> None:
    """Give somebody a new key; prints the token. The key before is taken until `retire`."""
    with _changing(folder) as access:
        member = access.rotate(role, name)
    _tell(member, as_json=as_json)


@command.command("retire")
@_user_arguments
@_folder_option
@reports_errors
def retire(role: Role, name: str, folder: Path) -> None:
    """Take the key before the present one no more."""
    with _changing(folder) as access:
        if not access.retire(role, name):
            click.echo(f"{role} {name} has one key only.", err=True)


@command.command("rm")
@_user_arguments
@_folder_option
@reports_errors
def remove(role: Role, name: str, folder: Path) -> None:
    """Let somebody take part no more; who is connected is not any more."""
    with _changing(folder) as access:
        access.remove(role, name)


@command.command("renew")
@_hosts_option("Names and addresses of the NATS servers, instead of those before.")
@_folder_option
@reports_errors
def renew(hosts: Sequence[str], folder: Path) -> None:
    """Make a new certificate for the servers."""
    with _changing(folder) as access:
        access.renew_server(hosts)


@command.command("backup")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_folder_option
@reports_errors
def backup(file: Path, folder: Path) -> None:
    """Copy the folder into FILE. Who has it can be anybody: keep it as you keep passwords."""
    back_up(AccessFolder(folder), file)


@command.command("restore")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_folder_option
@reports_errors
def restore_command(file: Path, folder: Path) -> None:
    """Have the folder again that was copied into FILE, where there is none."""
    access = restore(file, folder)
    for server in access.servers:
        click.echo(str(server.path / CONFIG_NAME))


@contextlib.contextmanager
def _changing(folder: Path) -> Iterator[AccessFolder]:
    """Around a change that a running server takes at once."""
    access = AccessFolder(folder)
    with access.changing():
        yield access
    reloaded = [_reload(server) for server in access.servers]
    if len(reloaded) > 1 and not all(reloaded):
        click.echo(_COPY_AGAIN.format(servers=shlex.quote(f"{folder}/servers")), err=True)
    elif not all(reloaded):
        click.echo("No server runs with this folder here; others need a reload.", err=True)


def _reload(server: ServerFolder) -> bool:
    """Whether a server of this folder was told to read its configuration again."""
    try:
        number = int((server.path / PID_NAME).read_text())
        if "nats-server" in psutil.Process(number).name():
            os.kill(number, signal.SIGHUP)
            return True
    except (OSError, ValueError, psutil.Error):
        pass
    return False


def _tell(member: Membership, *, as_json: bool) -> None:
    token = member.token()
    if as_json:
        told = {"role": member.role, "name": member.name, "token": token}
        click.echo(orjson.dumps(told).decode())
    else:
        click.echo(token)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
