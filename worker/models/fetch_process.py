"""The process that fetches a model's files from the hub into its cache.

    python -m worker.models.fetch_process --repo OWNER/NAME [--revision REVISION] [--code] [--peers]

It honours what users set for huggingface_hub: HF_ENDPOINT, HF_TOKEN or the token of
`hf auth login`, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE. On stdout it writes JSON lines:

    {"ask_peers": true}                              with --peers; a line on stdin answers it
    {"note": text}                                   something to tell people
    {"total_bytes": int, "missing_bytes": int}       once: of all files, and still to be sent
    {"done_bytes": int}                              at most every 0.2 s, of the total
    {"came": text}                                   where the contents came from
    {"folder": path}  or  {"error": text}            the last one

The answer about peers is a list of `FilesOffer`. What is listed by the hub comes from them where
they have it, and is checked by its hash; where the hub cannot be reached they list it, too.

It is a process of its own because huggingface_hub is slow to import and blocks, and because
only a process can be ended at any moment. It ends when its stdin or stdout is closed.
"""

import argparse
import json
import os
import queue
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from shared.errors import ModelError
from shared.messages.files import FilesOffer
from worker.models import adapters, hub, hub_cache
from worker.models.blob import Blob
from worker.models.files import check_config, check_has_weights
from worker.models.hub_errors import describe, is_unreachable
from worker.models.listed_by_peers import listed_by_peers
from worker.peer_files.peer import Peer

_AT_ONCE = 4
_REPORT_S = 0.2
_ANSWER_S = 10.0
_OFFERS = TypeAdapter(list[FilesOffer])


def main() -> None:
    parser = argparse.ArgumentParser(prog="worker.models.fetch_process")
    parser.add_argument("--repo", required=True)
    parser.add_argument("--revision")
    parser.add_argument("--code", action="store_true", help="fetch Python files as well")
    parser.add_argument("--peers", action="store_true", help="ask which workers have it")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, not the terminal
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = _Parent(asks=arguments.peers)
    try:
        folder = _fetch(arguments.repo, arguments.revision, parent, code=arguments.code)
        _say(folder=str(folder))
        status = 0
    except Exception as error:
        _say(error=describe(error, arguments.repo, arguments.revision))
        status = 1
    os._exit(status)  # other threads may still wait for the network


def _fetch(repo: str, revision: str | None, parent: "_Parent", *, code: bool) -> Path:
    if revision is not None and (".." in revision or revision.startswith("/")):
        raise ModelError(f"{revision!r} is no name of a revision")  # nor may it be a path
    if hub.is_commit(revision):
        snapshot = hub_cache.complete_snapshot(repo, revision, code=code)
        if snapshot is not None:
            return _use(snapshot, repo, code=code)
    try:
        listing = hub.ask(repo, revision, code=code)
    except Exception as error:
        if not is_unreachable(error):
            raise
        snapshot = hub_cache.complete_snapshot(repo, revision, code=code)
        if snapshot is not None:
            _say(note=f"{describe(error, repo, revision)}; using the copy in the cache, {snapshot}")
            return _use(snapshot, repo, code=code)
        told = listed_by_peers(parent.offers(), repo, revision, code=code)
        if told is None:
            raise
        _say(note=f"{describe(error, repo, revision)}; going by what other workers have of it")
        return _fetch_listed(told, revision, parent, code=code, reached=False)
    return _fetch_listed(listing, revision, parent, code=code, reached=True)


def _use(snapshot: Path, repo: str, *, code: bool) -> Path:
    if not adapters.is_adapter(snapshot):
        check_config(snapshot / "config.json", repo, trust_remote_code=code)
    _say(total_bytes=hub_cache.size_bytes(snapshot, code=code), missing_bytes=0)
    return snapshot


def _fetch_listed(
    listing: hub.Listing, revision: str | None, parent: "_Parent", *, code: bool, reached: bool
) -> Path:
    names = [name for name in listing.names if "/" not in name]
    if not any(map(adapters.is_weights, names)):
        check_has_weights(names, listing.repo)
    blobs = hub_cache.blobs(listing)
    progress = _Progress(blobs.values())
    _say(total_bytes=progress.total_bytes, missing_bytes=progress.missing_bytes)
    hub_cache.check_room(progress.missing_bytes)
    if progress.missing_bytes:
        progress.use([Peer(offer) for offer in parent.offers()])
    # The small files first: they may show that the weights are not wanted.
    progress.fetch(blob for blob in blobs.values() if not blob.file.is_weights)
    if "config.json" in blobs:
        check_config(blobs["config.json"].path, listing.repo, trust_remote_code=code)
    progress.fetch(blobs.values())
    progress.tell_origin()
    return hub_cache.link(listing, revision, code=code, reached=reached)


class _Progress:
    """Fetches contents, several at once, and says how far they are."""

    def __init__(self, blobs: Iterable[Blob]) -> None:
        self._blobs = set(blobs)
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        self._said_bytes = -1
        self.total_bytes = sum(blob.file.size_bytes for blob in self._blobs)
        self.missing_bytes = sum(blob.missing_bytes for blob in self._blobs)

    def use(self, peers: Sequence[Peer]) -> None:
        """Fetch from them what they have."""
        for blob in self._blobs:
            blob.use(peers, lambda note: _say(note=note))

    def tell_origin(self) -> None:
        """Say how much came from whom."""
        came: Counter[str] = Counter()
        for blob in self._blobs:
            came.update(blob.came_from)
        if came:
            _say(came=", ".join(f"{count:,} bytes from {who}" for who, count in came.items()))

    def fetch(self, blobs: Iterable[Blob]) -> None:
        """Raises what the first one that fails raises, and leaves the others at it."""
        pending = {self._pool.submit(blob.fetch) for blob in set(blobs)}
        while pending:
            done, pending = wait(pending, timeout=_REPORT_S, return_when=FIRST_EXCEPTION)
            self._tell()
            for future in done:
                future.result()

    def _tell(self) -> None:
        done_bytes = sum(blob.done_bytes for blob in self._blobs)
        if done_bytes != self._said_bytes:
            self._said_bytes = done_bytes
            _say(done_bytes=done_bytes)


def _say(**fields: str | int) -> None:
    try:
        print(json.dumps(fields), flush=True)
    except BrokenPipeError:
        os._exit(1)  # nobody listens any more


class _Parent:
    """Who started this process: asked, and not outlived.

    Args:
        asks: whether it answers questions.
    """

    def __init__(self, *, asks: bool) -> None:
        self._asks = asks
        self._offers: list[FilesOffer] | None = None
        self._answers: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def offers(self) -> list[FilesOffer]:
        """What other workers have; it is asked once."""
        if self._offers is None:
            self._offers = self._asked() if self._asks else []
        return self._offers

    def _asked(self) -> list[FilesOffer]:
        _say(ask_peers=True)
        try:
            return _OFFERS.validate_json(self._answers.get(timeout=_ANSWER_S))
        except (queue.Empty, ValidationError):
            return []

    def _listen(self) -> None:
        for line in sys.stdin.buffer:
            self._answers.put(line)
        os._exit(1)


if __name__ == "__main__":
    main()
