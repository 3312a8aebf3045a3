"""`cluster chat`."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop

from shared.cli.answer import print_answer
from shared.cli.connection import cluster_connection
from shared.cli.options import print_error, prints_errors, settings_options, version_option
from shared.cli.request import request_fields, request_options, system_messages
from shared.client import Stream
from shared.errors import ClusterError

T = TypeVar("T")

_KEYS = """\
/new       start a new conversation
/exit      leave, as Ctrl-D does
/help      show these commands
Ctrl-C     stop an answer"""
_HELP = """Chat with a model. Each message is sent with the conversation so far.

Ctrl-C stops an answer. Ctrl-D or /exit leaves, /new starts a new conversation, /help lists the
commands. Reasoning is shown dimmed, and is sent back to the model with the conversation; --no-think
turns reasoning off.

\b
  cluster chat
  cluster chat --no-think --model quick --system "Answer in one sentence."
"""


@click.command(help=_HELP)
@request_options
@settings_options
@version_option("cluster chat")
@prints_errors
def command(
    config: Path | None,
    nats: str | None,
    token: str | None,
    skill: str,
    system: str | None,
    **flags: Any,
) -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (line editing and history for input())
    connection = cluster_connection(config, nats, token)
    fields = request_fields(flags)
    first_messages = system_messages(system)
    with _LoopThread() as loop:
        cluster = loop.run(connection.__aenter__())
        try:
            messages = list(first_messages)
            _greet(flags.get("model") or skill)
            while (typed := _read_line()) is not None:
                if typed == "/new":
                    messages = list(first_messages)
                elif typed == "/help":
                    click.echo(_KEYS)
                elif typed:
                    messages.append({"role": "user", "content": typed})
                    stream = cluster.stream(messages, skill=skill, **fields)
                    _print_answer(loop, stream)
                    messages.append(stream.message)
        finally:
            loop.run(connection.__aexit__(None, None, None))


def _greet(served_by: str) -> None:
    """Print the model or skill, and how to leave, if input comes from a terminal."""
    if sys.stdin.isatty():
        line = f"Chatting with {served_by}. /help lists the commands; Ctrl-D leaves."
        click.secho(line, dim=True, err=True)


def _read_line() -> str | None:
    """Return the line that the user types, or None to leave."""
    try:
        typed = input(click.style("> ", bold=True)).strip()
    except (EOFError, KeyboardInterrupt):
        click.echo()
        return None
    return None if typed in ("/exit", "/quit") else typed


def _print_answer(loop: "_LoopThread", stream: Stream) -> None:
    """Print an answer. After Ctrl-C or an error the stream's message has the partial answer."""
    try:
        loop.run(print_answer(stream))
    except KeyboardInterrupt:
        click.echo()
    except ClusterError as error:
        print_error(error, as_json=False)


class _LoopThread:
    """Runs an event loop on a thread, so that the connection stays alive while the user types."""

    def __enter__(self) -> "_LoopThread":
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Ctrl-C cancels `work` and is raised again."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            with contextlib.suppress(BaseException):
                future.result(timeout=2)
            raise
