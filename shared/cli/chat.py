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
from shared.cli.options import reports_errors, settings_options, version_option
from shared.cli.request import request_fields, request_options, system_messages
from shared.cli.session import session
from shared.client import Stream
from shared.errors import ClusterError

T = TypeVar("T")

_KEYS = """\
/new       begin again, without what was said
/exit      leave; so does Ctrl-D
/help      this list
Ctrl-C     stop an answer"""
_HELP = """Talk to a model. The conversation is kept until you leave or say /new.

Ctrl-C stops an answer; Ctrl-D or /exit leaves; /new begins again; /help lists the keys. What a
model thinks before it answers is shown dimmed, and goes back to it with the conversation;
--no-think turns it off.

\b
  cluster chat
  cluster chat --no-think --model quick --system "Answer in one sentence."
"""


@click.command(help=_HELP)
@request_options
@settings_options
@version_option("cluster chat")
@reports_errors
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
    connecting = session(config, nats, token)
    fields = request_fields(flags)
    beginning = system_messages(system)
    with _Loop() as loop:
        cluster = loop.run(connecting.__aenter__())
        try:
            messages = list(beginning)
            _greet(flags.get("model") or skill)
            while (said := _ask_user()) is not None:
                if said == "/new":
                    messages = list(beginning)
                elif said == "/help":
                    click.echo(_KEYS)
                elif said:
                    messages.append({"role": "user", "content": said})
                    stream = cluster.stream(messages, skill=skill, **fields)
                    _print_answer(loop, stream)
                    messages.append(stream.message)
        finally:
            loop.run(connecting.__aexit__(None, None, None))


def _greet(served_by: str) -> None:
    """Tell people what they talk to and how they leave; programs that write here need not know."""
    if sys.stdin.isatty():
        line = f"Talking to {served_by}. /help lists the keys; Ctrl-D leaves."
        click.secho(line, dim=True, err=True)


def _ask_user() -> str | None:
    """What the user types; None to leave."""
    try:
        said = input(click.style("> ", bold=True)).strip()
    except (EOFError, KeyboardInterrupt):
        click.echo()
        return None
    return None if said in ("/exit", "/quit") else said


def _print_answer(loop: "_Loop", stream: Stream) -> None:
    """What came before a Ctrl-C or an error stays in the stream's message."""
    try:
        loop.run(print_answer(stream))
    except KeyboardInterrupt:
        click.echo()
    except ClusterError as error:
        click.echo(f"{click.style('error:', fg='red')} {error.message}", err=True)


class _Loop:
    """An event loop on a thread, so that the connection lives while the user types."""

    def __enter__(self) -> "_Loop":
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`; a Ctrl-C cancels it first."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            with contextlib.suppress(BaseException):
                future.result(timeout=2)
            raise
