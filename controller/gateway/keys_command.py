"""`gateway keys`: make, list and remove API keys."""

from pathlib import Path
from typing import Any

import click
import orjson
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from controller.gateway.api_keys import (
    ApiKey,
    default_keys_file,
    hash_key,
    new_key,
    read_keys,
    write_keys,
)
from shared.cli.options import json_option, prints_errors
from shared.codec import first_problem
from shared.errors import SettingsError
from shared.messages.base import PRIORITIES
from shared.settings import ClusterSettings

_HELP = """Manage the API keys of the gateway, and their limits.

The file has only hashes of keys: a key is printed once, when it is made. A running gateway reads
the file again when it changes. Keys of one client share its limits. A NATS user made with
`cluster auth add client` under the same name is the same client, too.
"""


@click.group(help=_HELP)
def keys() -> None:
    pass


@keys.command(help="Make a key for a client and print it. The key cannot be printed again.")
@click.argument("client")
@click.option("--model", "models", multiple=True, help="Allowed model or skill. Default: all.")
@click.option("--max-priority", type=click.Choice(PRIORITIES), default="high", show_default=True)
@click.option("--requests-per-minute", type=int)
@click.option("--tokens-per-minute", type=int, help="Tokens of prompts and answers.")
@click.option("--max-concurrent", type=int, help="Concurrent requests.")
@click.option(
    "--admin",
    is_flag=True,
    help="May read /metrics, see the whole cluster on the page, and give its orders.",
)
@json_option
@click.pass_obj
@prints_errors
def add(
    settings: ClusterSettings, /, client: str, models: tuple[str, ...], as_json: bool, **limits: Any
) -> None:
    path = _keys_file(settings)
    key = new_key()
    try:
        entry = ApiKey(client=client, sha256=hash_key(key), models=list(models) or None, **limits)
    except ValidationError as error:
        raise SettingsError(first_problem(error)[1]) from None
    write_keys(path, [*_existing_keys(path), entry])
    if as_json:
        click.echo(orjson.dumps({"client": client, "key": key, "keys_file": str(path)}))
        return
    click.echo(key)
    click.echo(f"Its hash is in {path}. The key is not shown again.", err=True)
    if settings.gateway.keys_file is None:
        click.echo("Gateways that other machines can reach require a key.", err=True)


@keys.command("list", help="List the clients, their limits, and the first digits of the hashes.")
@json_option
@click.pass_obj
@prints_errors
def list_keys(settings: ClusterSettings, as_json: bool) -> None:
    entries = _existing_keys(_keys_file(settings))
    if as_json:
        click.echo(orjson.dumps([entry.model_dump(exclude_none=True) for entry in entries]))
        return
    table = Table("client", "hash", "models", "priority", "req/min", "tokens/min", "concurrent")
    for entry in entries:
        limits = (entry.requests_per_minute, entry.tokens_per_minute, entry.max_concurrent)
        table.add_row(
            entry.client + (" (admin)" if entry.admin else ""),
            entry.sha256[:8],
            ", ".join(entry.models) if entry.models else "all",
            f"up to {entry.max_priority}",
            *(str(limit) if limit is not None else "-" for limit in limits),
        )
    Console().print(table)


@keys.command(help="Remove all keys of a client, or the key whose hash begins with these digits.")
@click.argument("client_or_hash")
@click.pass_obj
@prints_errors
def rm(settings: ClusterSettings, client_or_hash: str) -> None:
    path = _keys_file(settings)
    entries = _existing_keys(path)
    remaining = [
        entry
        for entry in entries
        if entry.client != client_or_hash
        and not (len(client_or_hash) >= 8 and entry.sha256.startswith(client_or_hash))
    ]
    if len(remaining) == len(entries):
        raise SettingsError(
            f"{path}: no client and no hash (8 digits or more) matches {client_or_hash!r}"
        )
    write_keys(path, remaining)
    click.echo(f"{len(entries) - len(remaining)} removed")


def _keys_file(settings: ClusterSettings) -> Path:
    named = settings.gateway.keys_file
    return Path(named).expanduser() if named is not None else default_keys_file()


def _existing_keys(path: Path) -> list[ApiKey]:
    return read_keys(path) if path.exists() else []
