"""`cluster run`."""

import json
import sys
from functools import partial
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
from shared.client import Cluster, Usage
from shared.client.typed import read_value
from shared.codec import strict_json
from shared.errors import ClusterError, SettingsError, StreamFailed
from shared.messages.schemas import MAX_SCHEMA_BYTES, check_schema
from shared.terminal_text import for_output, printable

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

With --rerank a reranker sorts the lines of standard input by their relevance for a query, each
after its score:

\b
  cut -f2 notes.tsv | cluster run --rerank "How do I restart a worker?" - | head -3
"""


@click.command(help=_HELP)
@click.option(
    "--schema", metavar="FILE", type=click.Path(path_type=Path),
    help="File with a JSON schema that the answer must match.",
)  # fmt: skip
@click.option("--embed", is_flag=True, help="Embed the text; --skill is then `embed` by default.")
@click.option(
    "--rerank", metavar="QUERY",
    help="Rank the lines of the text by their relevance for QUERY; --skill is then `rerank` by "
    "default.",
)  # fmt: skip
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
    rerank: str | None,
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
    if embed or rerank is not None:
        fields = {"skill": skill} if skill != DEFAULT_SKILL else {}
        fields |= {"model": flags["model"]} if flags["model"] is not None else {}
        lines = [line for line in text.splitlines() if line.strip()]
        if rerank is None:
            printed = partial(_embed, lines, fields, as_json=as_json)
        elif embed:
            raise SettingsError("--embed does not go with --rerank")
        else:
            printed = partial(_rank, rerank, lines, fields, as_json=as_json)
        with_cluster(config, nats, token, printed, shows_progress=True)
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


async def _embed(
    lines: list[str], fields: dict[str, Any], cluster: Cluster, *, as_json: bool
) -> None:
    """Print the vector of each line."""
    embeddings = await cluster.embed(lines, **fields)
    if as_json:
        result = {"embeddings": embeddings.vectors, "usage": _usage(embeddings.usage)}
        click.echo(orjson.dumps(result).decode())
        return
    for vector in embeddings.vectors:
        click.echo(orjson.dumps(vector).decode())


async def _rank(
    query: str, lines: list[str], fields: dict[str, Any], cluster: Cluster, *, as_json: bool
) -> None:
    """Print the lines, the most relevant first, each after its score."""
    ranking = await cluster.rerank(query, lines, **fields)
    if as_json:
        result = {
            "results": [
                {"index": each.index, "score": each.score, "text": lines[each.index]}
                for each in ranking.results
            ],
            "usage": _usage(ranking.usage),
            "warnings": ranking.warnings,
        }
        click.echo(orjson.dumps(result).decode())
        return
    for warning in ranking.warnings:
        click.echo(f"warning: {printable(warning)}", err=True)
    for each in ranking.results:
        click.echo(f"{each.score:.4f}  {for_output(lines[each.index])}")


def _usage(usage: Usage) -> dict[str, int]:
    return {"prompt_tokens": usage.prompt_tokens}


def _in_terms_of_file(error: StreamFailed, file: Path) -> ClusterError:
    """Return the error; an error about the schema names the schema's file instead of the field."""
    if error.param is None or not error.param.startswith(_SCHEMA_PARAM):
        return error
    return SettingsError(f"--schema: {file}: {error.message.replace(_SCHEMA_PARAM, 'schema', 1)}")
