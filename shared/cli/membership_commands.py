"""The subcommands `join` and `leave` of `cluster`, `worker`, `controller` and `gateway`."""

import asyncio
import sys
from collections.abc import Sequence

import click
import orjson
import uvloop

from shared.access.member_credentials import MemberCredentials, read_token
from shared.access.roles import ROLES
from shared.access.stored_memberships import (
    MemberProgram,
    join,
    joined_settings,
    leave,
    member_program,
)
from shared.bus import Bus
from shared.cli.options import json_option, prints_errors
from shared.cli.wait_notice import wait_notice
from shared.errors import BusUnreachable, SettingsError
from shared.settings.nats import NatsSettings
from shared.subjects import inbox_prefix
from shared.terminal_text import escaped, printable

_WAIT_S = 5.0


def membership_commands(program: MemberProgram) -> Sequence[click.Command]:
    """Return `join` and `leave` for the command `program`."""

    @click.command("join")
    @click.argument("token", required=False)
    @json_option
    @prints_errors
    def join_command(token: str | None, as_json: bool) -> None:
        member = read_token(_token_text(token))
        if member_program(member.role) != program:
            raise SettingsError(
                f"this token is for the {member.role} {member.name!r}; "
                f"use `{member_program(member.role)} join`"
            )
        join(member)
        problem = _problem(member)
        if as_json:
            result = {
                "role": member.role,
                "name": member.name,
                "servers": member.servers,
                "reached": problem is None,
            }
            click.echo(orjson.dumps(result).decode())
            return
        where = ", ".join(member.servers)
        joined = printable(f"Joined {where} as {member.role} {member.name}.")
        click.echo(f"{joined} Next: {_usage(program)}")
        if problem is not None:
            click.echo(f"The cluster cannot be reached yet: {escaped(problem)}", err=True)

    @click.command("leave")
    @prints_errors
    def leave_command() -> None:
        if not leave(program):
            raise SettingsError(f"`{program}` has joined no cluster on this machine")

    roles = " or ".join(
        f"a {role}" if role != "admin" else "its administrator"
        for role in ROLES
        if member_program(role) == program
    )
    join_command.help = (
        f"Join a cluster, as {roles}.\n\n"
        "TOKEN is what `cluster auth add` prints. It is a secret: without the argument the command "
        "asks for it, or reads it from standard input. "
        f"The membership is stored on this machine until `{program} leave`; --nats, or `nats` in "
        "the settings, overrides it."
    )
    leave_command.help = "Leave the joined cluster, and delete its key from this machine."
    return join_command, leave_command


def _token_text(token: str | None) -> str:
    if token not in (None, "-"):
        return token
    if sys.stdin.isatty():
        return str(click.prompt("Token", hide_input=True))
    return sys.stdin.read(100_000)


def _usage(program: MemberProgram) -> str:
    return "cluster status" if program == "cluster" else program


def _problem(member: MemberCredentials) -> str | None:
    """Return why the cluster cannot be reached, or None."""
    joined = joined_settings(member_program(member.role))
    assert joined is not None
    settings = NatsSettings.model_validate(joined["nats"])

    async def reach() -> None:
        prefix = inbox_prefix(member.role, member.name)
        name = f"{member.role} {member.name}"
        async with wait_notice(f"Still trying to reach {', '.join(member.servers)} ..."):
            bus = await Bus.connect(settings, name=name, inbox_prefix=prefix, wait_s=_WAIT_S)
        await bus.close()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(reach())
    except BusUnreachable as error:
        return error.message
    return None
