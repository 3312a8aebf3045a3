"""`cluster route`."""

import sys
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console

from shared.cli.connection import with_cluster
from shared.cli.options import (
    json_option,
    prints_errors,
    reject_empty,
    settings_options,
    version_option,
)
from shared.cli.views.route import route_lines
from shared.codec import encode
from shared.errors import InvalidRequest

_HELP = """Show which worker a request would be routed to now, and why. Nothing is generated.

REQUEST is the JSON of a request, or just a prompt; - reads it from standard input. Eligible workers
are listed with their predicted time to first token (TTFT), the others with the reason why they are
not eligible.

\b
  cluster route --explain "What is the capital of France?"
  cluster route --explain '{"prompt": "x", "requires": {"chip": "M4 Max"}}'
  cluster route --skill code --explain - < request.json

\b
first token  predicted TTFT; the next five columns are its parts
load         loading the model
wait         waiting for a slot, and for prompts that are before this one
restore      copying cached blocks into the KV cache
prefill      computing the part of the prompt that is not cached
step         the first decode step
cached       share of the prompt that is cached, and where
slots        share of the worker's slots in use

A request with "debug": true has the same in its last message.
"""


@click.command(help=_HELP)
@click.option(
    "--explain", "request", metavar="REQUEST", required=True, callback=reject_empty,
    help="JSON of a request, or a prompt.",
)  # fmt: skip
@click.option("--skill", default="chat", show_default=True, help="A skill in cluster.yaml.")
@settings_options
@json_option
@version_option("cluster route")
@prints_errors
def command(
    request: str,
    skill: str,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    fields = _fields(sys.stdin.read() if request == "-" else request)
    route = with_cluster(config, nats, token, lambda cluster: cluster.route(skill=skill, **fields))
    if as_json:
        click.echo(encode(route).decode())
        return
    console = Console(highlight=False)
    for line in route_lines(route, console.width):
        console.print(line, soft_wrap=True)


def _fields(text: str) -> dict[str, Any]:
    """Return the fields of the request in `text`.

    Raises:
        InvalidRequest: the text starts like JSON and is not valid JSON, or has an unknown field.
    """
    if not text.lstrip().startswith("{"):
        return {"messages": [{"role": "user", "content": text}]}
    try:
        fields: dict[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"REQUEST is not valid JSON: {error}") from None
    for name in fields.keys() & {"self", "content", "skill"}:  # parameters of the client library
        raise InvalidRequest(f"{name}: unknown field", param=name)
    return fields
