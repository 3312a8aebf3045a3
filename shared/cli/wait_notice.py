"""Notices that a command is still waiting."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

WAITING = "Still waiting for an answer from the cluster ..."
_AFTER_S = 1.0


@asynccontextmanager
async def wait_notice(text: str) -> AsyncIterator[None]:
    """Print `text` on stderr if the block takes longer than a second.

    Like other progress output, the notice is printed only on a terminal, and never with --json.
    """
    context = click.get_current_context(silent=True)
    as_json = context is not None and context.params.get("as_json", False)
    if as_json or not sys.stderr.isatty():
        yield
        return
    timer = asyncio.get_running_loop().call_later(_AFTER_S, _print_notice, text)
    try:
        yield
    finally:
        timer.cancel()


def _print_notice(text: str) -> None:
    click.secho(text, dim=True, err=True)
