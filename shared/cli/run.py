"""`cluster run`."""

import sys
from pathlib import Path
from typing import Any

import click
import orjson

from shared.cli.answer import answer_as_dict, print_answer
from shared.cli.options import json_option, reports_errors, settings_options, version_option
from shared.cli.request import request_fields, request_options, system_messages
from shared.cli.schema_file import read_schema
from shared.cli.session import with_cluster
from shared.client import Cluster
from shared.client.typed import read_value
from shared.errors import ClusterError, SettingsError, StreamFailed

_SCHEMA_PARAM = "response_format.json_schema.schema"

_HELP = """Ask one question and stream the answer. PROMPT may be - for standard input.

\b
  cluster run "What is the capital of France?"
  cluster run --temperature 0 --max-tokens 20 "Count to ten"
  cat notes.txt | cluster run --system "Summarise this." -

With --schema the answer is a value of a JSON schema; one that breaks off, as at --max-tokens, ends
with an error:

\b
  echo '{"type": "object", "properties": {"city": {"type": "string"},
         "people": {"type": "integer"}}, "required": ["city", "people"],
         "additionalProperties": false}' > city.json
  cluster run --schema city.json "Tell me about Paris." | jq .people

Standard output has the answer alone. What a model thinks before it answers is shown dimmed on a
terminal (standard error), and is `reasoning` with --json; --no-think turns it off:

\b
  cluster run --no-think "Which is larger, 9.9 or 9.11?"
  cluster run --json "Which is larger, 9.9 or 9.11?" | jq -r .reasoning
"""


@click.command(help=_HELP)
@click.option(
    "--schema", metavar="FILE", type=click.Path(path_type=Path),
    help="A JSON schema: the answer is a value of it.",
)  # fmt: skip
@request_options
@settings_options
@json_option
@version_option("cluster run")
@click.argument("prompt", nargs=-1, required=True)
@reports_errors
def command(
    prompt: tuple[str, ...],
    schema: Path | None,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
    skill: str,
    system: str | None,
    **flags: Any,
) -> None:
    bound = read_schema(schema) if schema is not None else None
    text = sys.stdin.read() if prompt == ("-",) else " ".join(prompt)
    if not text.strip():
        raise SettingsError("PROMPT is empty")
    messages = [*system_messages(system), {"role": "user", "content": text}]
    fields = request_fields(flags)

    async def ask(cluster: Cluster) -> None:
        stream = cluster.stream(messages, schema=bound, skill=skill, **fields)
        if as_json:
            click.echo(orjson.dumps(answer_as_dict(await stream.collect())).decode())
        else:
            await print_answer(stream)
        if bound is not None:
            assert stream.usage is not None
            read_value(bound, stream.text, stream.finish_reason, stream.usage)

    try:
        with_cluster(config, nats, token, ask)
    except StreamFailed as error:
        raise (_of_schema(error, schema) if schema is not None else error) from None
    except KeyboardInterrupt:
        sys.exit(130)


def _of_schema(error: StreamFailed, file: Path) -> ClusterError:
    """The error, if it is about the schema in terms of its file."""
    if error.param is None or not error.param.startswith(_SCHEMA_PARAM):
        return error
    return SettingsError(f"--schema: {file}: {error.message.replace(_SCHEMA_PARAM, 'schema', 1)}")
