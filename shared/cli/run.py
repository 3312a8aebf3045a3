"""`cluster run`."""

import json
import sys
from pathlib import Path
from typing import Any

import click
import orjson

from shared.cli.answer import answer_as_dict, print_answer
from shared.cli.connection import with_cluster
from shared.cli.options import json_option, prints_errors, settings_options, version_option
from shared.cli.request import (
    DEFAULT_SKILL,
    request_fields,
    request_options,
    system_messages,
)
from shared.client import Cluster
from shared.client.typed import read_value
from shared.codec import strict_json
from shared.errors import ClusterError, SettingsError, StreamFailed
from shared.messages.schemas import MAX_SCHEMA_BYTES, check_schema

_MAX_FILE_BYTES = 8 * MAX_SCHEMA_BYTES
"""Includes white space."""


def read_schema(path: Path) -> dict[str, Any]:
    """Return the schema in a file.

    Raises:
        SettingsError: the file has no valid schema; names the file and the position.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _wrong(path, error.strerror or str(error)) from None
    except ValueError as error:  # a path with a zero byte
        raise _wrong(path, str(error)) from None
    if len(data) > _MAX_FILE_BYTES:
        raise _wrong(path, f"the file has more than {_MAX_FILE_BYTES} bytes")
    try:
        schema = strict_json(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _wrong(path, f"line {line}: not UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _wrong(path, f"{where}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise _wrong(path, "nested too deeply") from None
    except ValueError as error:  # `NaN`, a number of thousands of digits
        raise _wrong(path, str(error)) from None
    if not isinstance(schema, dict):
        raise _wrong(path, f"a schema must be an object, not {_kind(schema)}")
    try:
        check_schema(schema)
    except ValueError as error:
        raise _wrong(path, str(error)) from None
    return schema


def _kind(value: Any) -> str:
    kinds = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def _wrong(path: Path, problem: str) -> SettingsError:
    return SettingsError(f"--schema: {path}: {problem}")


_SCHEMA_PARAM = "response_format.json_schema.schema"

_HELP = """Send one prompt and stream the answer. PROMPT may be - to read standard input.

\b
  cluster run "What is the capital of France?"
  cluster run --temperature 0 --max-tokens 20 "Count to ten"
  cat notes.txt | cluster run --system "Summarise this." -

With --schema the answer is JSON that matches a JSON schema. An incomplete answer, for example one
that reached --max-tokens, is an error:

\b
  echo '{"type": "object", "properties": {"city": {"type": "string"},
         "people": {"type": "integer"}}, "required": ["city", "people"],
         "additionalProperties": false}' > city.json
  cluster run --schema city.json "Tell me about Paris." | jq .people

Standard output has only the answer. Reasoning is printed dimmed on standard error if that is a
terminal, and is the field `reasoning` with --json. --no-think turns reasoning off:

\b
  cluster run --no-think "Which is larger, 9.9 or 9.11?"
  cluster run --json "Which is larger, 9.9 or 9.11?" | jq -r .reasoning

With --embed a model that embeds texts returns a vector for PROMPT, or for each line of standard
input, as one line of JSON each:

\b
  cluster run --embed "The capital of France is Paris."
  cut -f2 notes.tsv | cluster run --embed - > vectors.jsonl
"""


@click.command(help=_HELP)
@click.option(
    "--schema", metavar="FILE", type=click.Path(path_type=Path),
    help="File with a JSON schema that the answer must match.",
)  # fmt: skip
@click.option("--embed", is_flag=True, help="Embed the text; --skill is then `embed` by default.")
@request_options
@settings_options
@json_option
@version_option("cluster run")
@click.argument("prompt", nargs=-1, required=True)
@prints_errors
def command(
    prompt: tuple[str, ...],
    schema: Path | None,
    embed: bool,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
    skill: str,
    system: str | None,
    **flags: Any,
) -> None:
    json_schema = read_schema(schema) if schema is not None else None
    text = sys.stdin.read() if prompt == ("-",) else " ".join(prompt)
    if not text.strip():
        raise SettingsError("PROMPT is empty")
    if embed:
        _embed(text, config, nats, token, skill, flags["model"], as_json=as_json)
        return
    messages = [*system_messages(system), {"role": "user", "content": text}]
    fields = request_fields(flags)

    async def ask(cluster: Cluster) -> None:
        stream = cluster.stream(messages, schema=json_schema, skill=skill, **fields)
        if as_json:
            click.echo(orjson.dumps(answer_as_dict(await stream.collect())).decode())
        else:
            await print_answer(stream)
        if json_schema is not None:
            assert stream.usage is not None
            read_value(json_schema, stream.text, stream.finish_reason, stream.usage)

    try:
        with_cluster(config, nats, token, ask, shows_progress=True)
    except StreamFailed as error:
        raise (_in_terms_of_file(error, schema) if schema is not None else error) from None
    except KeyboardInterrupt:
        sys.exit(130)


def _embed(
    text: str,
    config: Path | None,
    nats: str | None,
    token: str | None,
    skill: str,
    model: str | None,
    *,
    as_json: bool,
) -> None:
    """Print the vector of each line of a text."""
    lines = [line for line in text.splitlines() if line.strip()]
    chosen = {} if model is None else {"model": model}

    async def ask(cluster: Cluster) -> None:
        embeddings = await cluster.embed(
            lines, skill="embed" if skill == DEFAULT_SKILL else skill, **chosen
        )
        if as_json:
            tokens = embeddings.usage.prompt_tokens
            result = {"embeddings": embeddings.vectors, "usage": {"prompt_tokens": tokens}}
            click.echo(orjson.dumps(result).decode())
            return
        for vector in embeddings.vectors:
            click.echo(orjson.dumps(vector).decode())

    with_cluster(config, nats, token, ask, shows_progress=True)


def _in_terms_of_file(error: StreamFailed, file: Path) -> ClusterError:
    """Return the error; an error about the schema names the schema's file instead of the field."""
    if error.param is None or not error.param.startswith(_SCHEMA_PARAM):
        return error
    return SettingsError(f"--schema: {file}: {error.message.replace(_SCHEMA_PARAM, 'schema', 1)}")
