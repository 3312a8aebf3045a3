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
from shared.access.member_credentials import MemberCredentials
from shared.access.nats_accounts import CLIENT_CONNECTIONS
from shared.access.roles import ROLES, Role
from shared.access.server_folder import CONFIG_NAME, PID_NAME, NatsServerFolder
from shared.access.stored_memberships import join, membership
from shared.cli.lazy_group import DefaultListGroup
from shared.cli.options import json_option, prints_errors, reject_empty, version_option
from shared.cli.views.users import user_table
from shared.folders import data_folder
from shared.ids import name_from

_HELP = """Manage the users of a cluster: keys, certificates, tokens, and its NATS configuration.

One machine has the folder with all keys. Every other machine gets a token: one line to paste into
`worker join`, `controller join`, `gateway join` or `cluster join` there. A NATS server that runs
with the configuration in the folder applies every change at once.

\b
  cluster auth init --host mac-1.local
  cluster auth add worker mac-2               prints the token to paste on mac-2
  cluster auth add client ada
  cluster auth rotate client ada              a new key; the old one stays valid until:
  cluster auth retire client ada
  cluster auth rm client ada                  disconnected, and refused from now on

  cluster auth init --clustered --host mac-1.local --host mac-2.local --host mac-3.local
                                              a NATS cluster of three: one may fail
"""

_COPY_AGAIN = """Copy the folders in {servers} to their machines again. Then, in each folder there:
  nats-server --signal reload=nats-server.pid"""
_RESTART = """Accounts were added, because there were fewer than clients. A reload is not enough for
them: restart the servers instead, one after another."""
_ROUTE_PORT = 6222
_START_ONE = "  nats-server --config {config}"
_START_SEVERAL = """  Copy each folder in {servers} to its machine. There, in that folder:
  nats-server --config nats-server.json"""
_NEXT = """
Next:
{start}
  cluster auth add controller {name} | controller join     then: controller
  cluster auth add worker NAME        prints a token for that Mac: worker join
  cluster auth add client NAME        prints a token for a person: cluster join"""


@click.group(cls=DefaultListGroup, help=_HELP)
@version_option("cluster auth")
def command() -> None:
    pass


def _folder_option(function: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--folder",
        type=click.Path(path_type=Path, file_okay=False),
        default=lambda: data_folder() / "access",
        help="The folder with all keys. Default: in the data folder of this user.",
    )(function)


def _user_arguments(function: Callable[..., None]) -> Callable[..., None]:
    for argument in (
        click.argument("name", callback=reject_empty),
        click.argument("role", type=click.Choice(ROLES)),
    ):
        function = argument(function)
    return function


def _limit_option(
    help: str, *, required: bool
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--max-connections", type=click.IntRange(min=1), required=required, metavar="N", help=help
    )


def _hosts_option(help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--host", "hosts", multiple=True, callback=reject_empty, metavar="NAME", help=help
    )


@command.command("init")
@_hosts_option(
    "Name or address of the NATS server; repeat for each. Default: the name of this machine."
)
@click.option("--port", type=click.IntRange(1, 65535), default=4222, show_default=True)
@click.option(
    "--clustered",
    is_flag=True,
    help="Each --host is one server of a NATS cluster of three or more.",
)
@click.option(
    "--route-port",
    type=click.IntRange(1, 65535),
    default=_ROUTE_PORT,
    show_default=True,
    help="Port on which the servers of a NATS cluster connect to each other.",
)
@_folder_option
@json_option
@prints_errors
def init(
    hosts: Sequence[str], port: int, clustered: bool, route_port: int, folder: Path, as_json: bool
) -> None:
    """Create the folder: a certificate authority, a server certificate, and an administrator."""
    listening = new_listening(
        names=list(hosts) or [socket.gethostname()],
        port=port,
        route_port=route_port if clustered else None,
    )
    access = AccessFolder.create(folder, listening)
    admin = name_from(getpass.getuser())
    with access.changing():
        member = access.add("admin", admin, now=_now())
    joins = membership("cluster") is None
    if joins:
        join(member)
    configs = [str(server.path / CONFIG_NAME) for server in access.servers]
    if as_json:
        result = {
            "folder": str(folder),
            "server_config": configs[0],
            "server_configs": configs,
            "admin": admin,
            "joined": joins,
        }
        click.echo(orjson.dumps(result).decode())
        return
    click.echo(f"Created {folder}. It contains all keys: keep it readable for you only.")
    if joins:
        click.echo(f"`cluster` on this machine now runs as the administrator {admin}.")
    else:
        click.echo(
            "`cluster` on this machine has joined another cluster. To administer this one:\n"
            f"  cluster auth token admin {admin} | cluster join"
        )
    start = _START_SEVERAL if clustered else _START_ONE
    start = start.format(config=shlex.quote(configs[0]), servers=shlex.quote(f"{folder}/servers"))
    click.echo(_NEXT.format(start=start, name=name_from(socket.gethostname())))


@command.command("ls")
@_folder_option
@json_option
@prints_errors
def list_users(folder: Path, as_json: bool) -> None:
    """List users. The default subcommand."""
    users = sorted(AccessFolder(folder).users, key=lambda user: (user.role, user.name))
    if as_json:
        click.echo(orjson.dumps({"users": [user.model_dump() for user in users]}).decode())
        return
    console = Console(highlight=False)
    for line in user_table(users, console.width):
        console.print(line, soft_wrap=True)


@command.command("add")
@_user_arguments
@_limit_option(
    f"How many connections a client may have at once. Default: {CLIENT_CONNECTIONS}.",
    required=False,
)
@_folder_option
@json_option
@prints_errors
def add(role: Role, name: str, max_connections: int | None, folder: Path, as_json: bool) -> None:
    """Add a user, and print its token."""
    with _updating(folder) as access:
        member = access.add(role, name, now=_now(), max_connections=max_connections)
    _print_token(member, as_json=as_json)


@command.command("limit")
@_user_arguments
@_limit_option("How many connections the client may have at once.", required=True)
@_folder_option
@prints_errors
def limit(role: Role, name: str, max_connections: int, folder: Path) -> None:
    """Change how many connections a client may have. Connections above the limit are closed."""
    with _updating(folder) as access:
        access.limit(role, name, max_connections)


@command.command("token")
@_user_arguments
@_folder_option
@json_option
@prints_errors
def token(role: Role, name: str, folder: Path, as_json: bool) -> None:
    """Print the token of a user again."""
    _print_token(AccessFolder(folder).membership(role, name), as_json=as_json)


@command.command("rotate")
@_user_arguments
@_folder_option
@json_option
@prints_errors
def rotate(role: Role, name: str, folder: Path, as_json: bool) -> None:
    """Create a new key for a user, and print its token. The old key stays valid until `retire`."""
    with _updating(folder) as access:
        member = access.rotate(role, name)
    _print_token(member, as_json=as_json)


@command.command("retire")
@_user_arguments
@_folder_option
@prints_errors
def retire(role: Role, name: str, folder: Path) -> None:
    """Revoke the old key of a user after `rotate`."""
    with _updating(folder) as access:
        if not access.retire(role, name):
            click.echo(f"{role} {name} has no old key.", err=True)


@command.command("rm")
@_user_arguments
@_folder_option
@prints_errors
def remove(role: Role, name: str, folder: Path) -> None:
    """Remove a user; its connections are closed."""
    with _updating(folder) as access:
        access.remove(role, name)


@command.command("renew")
@_hosts_option("New names and addresses of the NATS servers.")
@_folder_option
@prints_errors
def renew(hosts: Sequence[str], folder: Path) -> None:
    """Create a new certificate for the servers."""
    with _updating(folder) as access:
        access.renew_server(hosts)


@command.command("backup")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_folder_option
@prints_errors
def backup(file: Path, folder: Path) -> None:
    """Copy the folder into FILE. FILE contains all keys: protect it like a password."""
    back_up(AccessFolder(folder), file)


@command.command("restore")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_folder_option
@prints_errors
def restore_command(file: Path, folder: Path) -> None:
    """Restore the folder from FILE; refused if the folder exists."""
    access = restore(file, folder)
    for server in access.servers:
        click.echo(str(server.path / CONFIG_NAME))


@contextlib.contextmanager
def _updating(folder: Path) -> Iterator[AccessFolder]:
    """Open the folder for a change, and reload the server afterwards."""
    access = AccessFolder(folder)
    accounts = access.client_accounts
    with access.changing():
        yield access
    reloaded = [_reload(server) for server in access.servers]
    if len(reloaded) > 1 and not all(reloaded):
        click.echo(_COPY_AGAIN.format(servers=shlex.quote(f"{folder}/servers")), err=True)
        if access.client_accounts > accounts:
            click.echo(_RESTART, err=True)
    elif not all(reloaded):
        click.echo(
            "No server with this folder runs here; servers elsewhere need a reload.", err=True
        )


def _reload(server: NatsServerFolder) -> bool:
    """Whether a running server of this folder was signalled to reload its configuration."""
    try:
        number = int((server.path / PID_NAME).read_text())
        if "nats-server" in psutil.Process(number).name():
            os.kill(number, signal.SIGHUP)
            return True
    except (OSError, ValueError, psutil.Error):
        pass
    return False


def _print_token(member: MemberCredentials, *, as_json: bool) -> None:
    token = member.token()
    if as_json:
        result = {"role": member.role, "name": member.name, "token": token}
        click.echo(orjson.dumps(result).decode())
    else:
        click.echo(token)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
