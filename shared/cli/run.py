"""`cluster run`."""

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.text import Text

from shared.cli.options import json_option, reports_errors, settings_options, version_option
from shared.cli.session import with_cluster
from shared.client import Cluster, Completion, Stream
from shared.errors import SettingsError

_HELP = """Ask one question and stream the answer. PROMPT may be - for standard input.

\b
  cluster run "What is the capital of France?"
  cluster run --temperature 0 --max-tokens 20 "Count to ten"
  cat notes.txt | cluster run --system "Summarise this." -
"""


def request_options(function: Any) -> Any:
    """The fields of a request that people set by hand."""
    for option in (
        click.option("--seed", type=int, help="Makes a sampled answer repeatable."),
        click.option("--max-tokens", type=int, help="At most so many tokens.  [default: 512]"),
        click.option("--top-p", type=float, help="Nucleus sampling.  [default: 1]"),
        click.option("--temperature", type=float, help="0 for the likeliest.  [default: 1]"),
        click.option("--system", help="System message."),
        click.option("--model", help="One of the skill's models.  [default: the first available]"),
        click.option("--skill", default="chat", show_default=True, help="A skill of cluster.yaml."),
    ):
        function = option(function)
    return function


@click.command(help=_HELP)
@request_options
@settings_options
@json_option
@version_option("cluster run")
@click.argument("prompt", nargs=-1, required=True)
@reports_errors
def command(
    prompt: tuple[str, ...],
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
    skill: str,
    system: str | None,
    **fields: Any,
) -> None:
    text = sys.stdin.read() if prompt == ("-",) else " ".join(prompt)
    if not text.strip():
        raise SettingsError("PROMPT is empty")
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    given = {name: value for name, value in fields.items() if value is not None}

    async def ask(cluster: Cluster) -> None:
        stream = cluster.stream(messages, skill=skill, **given)
        if as_json:
            click.echo(orjson.dumps(_as_dict(await stream.collect())).decode())
        else:
            await print_stream(stream, [])

    try:
        with_cluster(config, nats, token, ask)
    except KeyboardInterrupt:
        sys.exit(130)


class _Waiting:
    """What a stream waits for, as of each time it is shown."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __rich__(self) -> Text:
        progress = self._stream.progress
        share = f" {progress:.0%}" if progress is not None else ""
        return Text(f"{self._stream.status or ''}{share}", style="dim")


async def print_stream(stream: Stream, spoken: list[str]) -> None:
    """Print an answer as it comes, add its pieces to `spoken`, and show on stderr what it cost."""
    console = Console(stderr=True)
    started = time.monotonic()
    async with stream:
        with console.status(_Waiting(stream)) as spinner:
            async for chunk in stream:
                if chunk.text:
                    spinner.stop()
                    spoken.append(chunk.text)
                    click.echo(chunk.text, nl=False)
                    sys.stdout.flush()
    click.echo()
    console.print(_cost(stream, time.monotonic() - started), style="dim", highlight=False)


def _cost(stream: Stream, seconds: float) -> str:
    usage, timings = stream.usage, stream.timings
    if usage is None or timings is None:
        return ""
    decoded = usage.completion_tokens - 1
    speed = decoded / (timings.decode_ms / 1000) if decoded > 0 and timings.decode_ms else 0.0
    return (
        f"{usage.completion_tokens} tokens, {speed:.1f} tokens/s, "
        f"first token after {timings.ttft_ms / 1000:.2f} s, {seconds:.2f} s in all, "
        f"by {stream.worker}"
    )


def _as_dict(answer: Completion) -> dict[str, Any]:
    return {
        "request_id": answer.request_id,
        "worker": answer.worker,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "token_ids": answer.token_ids,
        "usage": asdict(answer.usage),
        "timings": asdict(answer.timings),
    }
