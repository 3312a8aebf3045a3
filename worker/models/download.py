"""Runs a child process that downloads a model from the hub, and follows its progress."""

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
    """Download the files of a repository that mlx-lm needs and that the hub's cache lacks.

    On cancellation the child is killed before this function returns; partial downloads stay on
    disk.

    Args:
        revision: a branch, tag or commit; by default `main`.
        trust_remote_code: download Python files too; otherwise a model that needs them is rejected.
        on_size: called once, at the start, with the bytes of all files and of the missing ones. A
            ModelError that it raises ends the download.
        report: called with the progress, 0 to 1, a few times a second while it changes.
        ask_peers: returns what other workers have of a repository and revision. Contents that
            they have are downloaded from them.

    Returns:
        The folder of the files, in the hub's cache.

    Raises:
        ModelError: the download failed, or made no progress for `stall_limit_s`; the message says
            what to do.
    """
    if not is_hub_id(repo):
        raise ModelError(f"{repo} is not an id of the hub (owner/name)")
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
            stdin=PIPE,  # when it closes, the child ends
            stdout=PIPE,
            stderr=PIPE,
            limit=_MAX_LINE_BYTES,
            env=_environment(),
        )
    except OSError as error:
        raise ModelError(f"the download process cannot start: {error.strerror}") from None
    try:
        offers = partial(ask_peers, repo, revision) if ask_peers is not None else None
        return await _follow(repo, process, stall_limit_s, on_size, report, offers)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def _environment() -> dict[str, str]:
    """Return the child's environment. Without HF_HUB_DISABLE_TELEMETRY huggingface_hub also
    requests the names of coding agents from the hub."""
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
    """Handle the child's lines until the last one; returns the folder."""
    assert process.stdout is not None and process.stdin is not None
    total_bytes = 0
    while True:
        try:
            async with asyncio.timeout(stall_limit_s):
                line = await process.stdout.readline()
        except TimeoutError:
            raise ModelError(
                f"no progress for {stall_limit_s:g} s; the partial download is kept, and the next "
                "attempt resumes it"
            ) from None
        if not line:
            raise ModelError(await _exit_reason(process))
        match _parse(line):
            case {"total_bytes": int(total_bytes), "missing_bytes": int(missing_bytes)}:
                on_size(total_bytes, missing_bytes)
            case {"done_bytes": int(done_bytes)}:
                report(done_bytes / max(total_bytes, 1))
            case {"ask_peers": True} if ask_peers is not None:
                offers = [offer.model_dump(mode="json") for offer in await ask_peers()]
                process.stdin.write(json.dumps(offers).encode() + b"\n")
            case {"came": str(came)}:
                logger.info("%s: downloaded %s", repo, came)
            case {"note": str(note)}:
                logger.warning("%s", note)
            case {"folder": str(folder)}:
                return Path(folder)
            case {"error": str(message)}:
                raise ModelError(message)


def _parse(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:  # truncated when the child ended
        return None


async def _exit_reason(process: Process) -> str:
    """Return the error message for a child that ended without a last line."""
    _, errors = await process.communicate()
    status = process.returncode or 0
    reason = f"signal {-status}" if status < 0 else f"exit status {status}"
    lines = errors.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"the download process ended unexpectedly, {reason}{': ' + last if last else ''}"
