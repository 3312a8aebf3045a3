"""`cluster route`."""

import sys
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console

from shared.cli.options import (
    json_option,
    not_empty,
    reports_errors,
    settings_options,
    version_option,
)
from shared.cli.session import with_cluster
from shared.cli.views.route import route_lines
from shared.codec import encode
from shared.errors import InvalidRequest

_HELP = """Show where a request would go now, and why; nothing is generated.

REQUEST is the JSON that one would publish, or only a prompt; - reads it from standard input.
Each worker that could serve it is listed with its predicted time to the first token, the others
with what keeps them from it.

\b
  cluster route --explain "What is the capital of France?"
  cluster route --explain '{"prompt": "x", "requires": {"chip": "M4 Max"}}'
  cluster route --skill code --explain - < request.json

Of a request that is served the same is told in its last message, if it asks with "debug": true.
"""


@click.command(help=_HELP)
@click.option(
    "--explain", "request", metavar="REQUEST", required=True, callback=not_empty,
    help="The request: JSON, or a prompt.",
)  # fmt: skip
@click.option("--skill", default="chat", show_default=True, help="A skill of cluster.yaml.")
@settings_options
@json_option
@version_option("cluster route")
@reports_errors
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
    """Those of a request.

    Raises:
        InvalidRequest: it looks like JSON and is none, or has what is no field of a request.
    """
    if not text.lstrip().startswith("{"):
        return {"messages": [{"role": "user", "content": text}]}
    try:
        fields: dict[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"REQUEST is no JSON: {error}") from None
    for name in fields.keys() & {"self", "content", "skill"}:  # those of the call, not of requests
        raise InvalidRequest(f"{name}: unknown field", param=name)
    return fields
