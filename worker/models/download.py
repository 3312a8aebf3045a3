"""Having a child process fetch a model from the hub, and following how that goes."""

import asyncio
import contextlib
import json
import logging
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from shared.errors import ModelError
from shared.ids import is_hub_id
from shared.messages.files import FilesOffer
from shared.python_module import python_module

logger = logging.getLogger(__name__)

AskPeers = Callable[[str, str | None], Awaitable[list[FilesOffer]]]

_MAX_LINE_BYTES = 1024 * 1024


async def download(
    repo: str,
    revision: str | None,
    *,
    trust_remote_code: bool,
    stall_limit_s: float,
    on_size: Callable[[int, int], None],
    report: Callable[[float], None],
    ask_peers: AskPeers | None = None,
) -> Path:
    """Fetch what mlx-lm needs of a repository; what is in the hub's cache is not fetched again.

    When this is cancelled, the child is dead before it returns, and what was fetched is kept.

    Args:
        revision: a branch, tag or commit; by default `main`.
        trust_remote_code: fetch Python files too; without, a model that needs them is refused.
        on_size: called once, at the begin, with the bytes of all files and those still missing.
            A ModelError that it raises ends the download.
        report: told how far it is, 0 to 1, a few times a second while it moves.
        ask_peers: finds out which workers have what of a repository and revision. What they have
            comes from there.

    Returns:
        The folder with the files, in the hub's cache.

    Raises:
        ModelError: it could not be fetched, or nothing was heard of it for `stall_limit_s`;
            says what to do.
    """
    if not is_hub_id(repo):
        raise ModelError(f"{repo} is no id of the hub (owner/name)")
    command = [*python_module("worker.models.fetch_process"), f"--repo={repo}"]
    if revision is not None:
        command.append(f"--revision={revision}")
    if trust_remote_code:
        command.append("--code")
    if ask_peers is not None:
        command.append("--peers")
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,  # its end tells the child that we are gone
            stdout=PIPE,
            stderr=PIPE,
            limit=_MAX_LINE_BYTES,
            env=_environment(),
        )
    except OSError as error:
        raise ModelError(f"the process that fetches it cannot start: {error.strerror}") from None
    try:
        asked = partial(ask_peers, repo, revision) if ask_peers is not None else None
        return await _follow(repo, process, stall_limit_s, on_size, report, asked)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def _environment() -> dict[str, str]:
    """A model is fetched, nothing else: without the first, huggingface_hub asks the hub also for
    the names of coding agents."""
    quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return {**os.environ, **quiet}


async def _follow(
    repo: str,
    process: Process,
    stall_limit_s: float,
    on_size: Callable[[int, int], None],
    report: Callable[[float], None],
    ask_peers: Callable[[], Awaitable[list[FilesOffer]]] | None,
) -> Path:
    """Read the child's lines until the last one."""
    assert process.stdout is not None and process.stdin is not None
    total_bytes = 0
    while True:
        try:
            async with asyncio.timeout(stall_limit_s):
                line = await process.stdout.readline()
        except TimeoutError:
            raise ModelError(
                f"no progress for {stall_limit_s:g} s; what was fetched is kept, and fetching "
                "goes on from there when it is tried again"
            ) from None
        if not line:
            raise ModelError(await _last_words(process))
        match _parse(line):
            case {"total_bytes": int(total_bytes), "missing_bytes": int(missing_bytes)}:
                on_size(total_bytes, missing_bytes)
            case {"done_bytes": int(done_bytes)}:
                report(done_bytes / max(total_bytes, 1))
            case {"ask_peers": True} if ask_peers is not None:
                offers = [offer.model_dump(mode="json") for offer in await ask_peers()]
                process.stdin.write(json.dumps(offers).encode() + b"\n")
            case {"came": str(came)}:
                logger.info("%s: %s", repo, came)
            case {"note": str(note)}:
                logger.warning("%s", note)
            case {"folder": str(folder)}:
                return Path(folder)
            case {"error": str(message)}:
                raise ModelError(message)


def _parse(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:  # cut when the child died
        return None


async def _last_words(process: Process) -> str:
    """Why a child ended that did not say it."""
    _, errors = await process.communicate()
    status = process.returncode or 0
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    lines = errors.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"the process that fetches it ended by itself, {how}{': ' + last if last else ''}"
