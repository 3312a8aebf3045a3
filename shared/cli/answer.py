"""Printing of answers: content on stdout, everything else on stderr."""

import sys
import time
from dataclasses import asdict
from typing import Any, Self

import click
from rich.console import Console
from rich.text import Text

from shared.client import Completion, Stream
from shared.terminal_text import escaped, for_output, printable


async def print_answer(stream: Stream) -> None:
    """Print an answer while it is generated.

    Control characters are escaped on a terminal; into a file or a pipe the answer goes unchanged.
    stderr has the reasoning (dimmed, only on a terminal), warnings, and a line with token counts
    and times.
    """
    console = Console(stderr=True)
    started = time.monotonic()
    async with stream:
        with (
            _ReasoningOutput(shown=console.is_terminal) as reasoning,
            console.status(_WaitIndicator(stream)) as spinner,
        ):
            async for chunk in stream:
                if chunk.reasoning and reasoning.shown:
                    spinner.stop()
                    reasoning.print(chunk.reasoning)
                if chunk.text:
                    spinner.stop()
                    reasoning.end()
                    click.echo(for_output(chunk.text), nl=False)
                    sys.stdout.flush()
    click.echo()
    for warning in stream.warnings:
        click.echo(f"{click.style('warning:', fg='yellow')} {printable(warning)}", err=True)
    usage = Text(printable(_usage_line(stream, time.monotonic() - started)), style="dim")
    console.print(usage, highlight=False)


class _ReasoningOutput:
    """Prints the reasoning of a model, before its answer."""

    def __init__(self, *, shown: bool) -> None:
        self.shown = shown
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def print(self, piece: str) -> None:
        self._open = True
        click.secho(escaped(piece), dim=True, nl=False, err=True)

    def end(self) -> None:
        """Start a new paragraph if reasoning was printed."""
        if self._open:
            self._open = False
            click.echo("\n", err=True)


class _WaitIndicator:
    """Renders what a stream waits for at the time of rendering."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __rich__(self) -> Text:
        progress = self._stream.progress
        percent = f" {progress:.0%}" if progress is not None else ""
        return Text(f"{self._stream.status or ''}{percent}", style="dim")


def _usage_line(stream: Stream, seconds: float) -> str:
    usage, timings = stream.usage, stream.timings
    if usage is None or timings is None:
        return ""
    decoded = usage.completion_tokens - 1
    speed = decoded / (timings.decode_ms / 1000) if decoded > 0 and timings.decode_ms else 0.0
    reasoning = f" ({usage.reasoning_tokens} of reasoning)" if usage.reasoning_tokens else ""
    return (
        f"{usage.completion_tokens} tokens{reasoning}, {speed:.1f} tokens/s, "
        f"first token after {timings.ttft_ms / 1000:.2f} s, {seconds:.2f} s in all, "
        f"worker {stream.worker}"
    )


def answer_as_dict(answer: Completion) -> dict[str, Any]:
    """Return an answer as the JSON object that --json prints."""
    return {
        "request_id": answer.request_id,
        "worker": answer.worker,
        "text": answer.text,
        "reasoning": answer.reasoning,
        "tool_calls": answer.tool_calls,
        "finish_reason": answer.finish_reason,
        "token_ids": answer.token_ids,
        "usage": asdict(answer.usage),
        "timings": asdict(answer.timings),
        "warnings": list(answer.warnings),
    }
