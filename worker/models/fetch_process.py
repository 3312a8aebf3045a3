"""The process that downloads a model's files from the hub into the hub's cache.

    python -m worker.models.fetch_process --repo OWNER/NAME [--revision REVISION] [--code] [--peers]

The process honours the settings of huggingface_hub: HF_ENDPOINT, HF_TOKEN or the token of
`hf auth login`, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE. It writes JSON lines to stdout:

    {"ask_peers": true}                              with --peers; the reply is a line on stdin
    {"note": text}                                   a warning for the log
    {"total_bytes": int, "missing_bytes": int}       once: all files, and what must be downloaded
    {"done_bytes": int}                              at most every 0.2 s, of the total
    {"came": text}                                   the sources of the contents
    {"folder": path}  or  {"error": text}            the last line

The reply about peers is a list of `FilesOffer`. Contents that peers have are downloaded from them
and verified by their hashes from the hub's listing; if the hub cannot be reached, the listing comes
from peers, too.

This is a separate process because huggingface_hub is slow to import and blocks, and because only a
process can be ended at any moment. It ends when its stdin or stdout is closed.
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
from worker.models.blob_download import BlobDownload
from worker.models.files import check_config, check_has_weights
from worker.models.hub import HubFile, HubListing, is_commit, needed_names
from worker.models.hub_errors import describe, is_unreachable
from worker.peer_files.peer import RemoteFilePeer


def listed_by_peers(
    offers: Sequence[FilesOffer], repo: str, revision: str | None, *, code: bool
) -> HubListing | None:
    """Return the listing of a revision; None if no worker has all of its files.

    Raises:
        ModelError: the workers' listings differ, or the model contains Python code, for which only
            the hub is trusted.
    """
    complete = [offer for offer in offers if offer.commit and offer.files]
    listings = {_listing(offer, repo, code=code): offer.worker for offer in complete}
    if len(listings) > 1:
        raise ModelError(
            f"the hub cannot be reached, and workers have different files of {repo}, "
            f"{revision or 'main'}: {', '.join(sorted(listings.values()))}; name a commit as "
            "`revision` of this model in cluster.yaml, or try again when the hub can be reached"
        )
    for listing in listings:
        if is_commit(revision) and listing.commit != revision:
            return None
        if code and any(file.name.endswith(".py") for file in listing.needed):
            raise ModelError(
                f"the hub cannot be reached, and {repo} contains Python code, which is not "
                "downloaded from other workers; try again when the hub can be reached"
            )
        return listing
    return None


def _listing(offer: FilesOffer, repo: str, *, code: bool) -> HubListing:
    names = sorted(offer.files)
    needed = [
        HubFile(name, offer.contents.get(offer.files[name], 0), offer.files[name])
        for name in needed_names(names, code=code)
    ]
    return HubListing(repo, offer.commit, tuple(names), tuple(needed))


_PARALLEL_FETCHES = 4
_REPORT_INTERVAL_S = 0.2
_REPLY_TIMEOUT_S = 10.0
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
        _emit(folder=str(folder))
        status = 0
    except Exception as error:
        _emit(error=describe(error, arguments.repo, arguments.revision))
        status = 1
    os._exit(status)  # other threads may still wait for the network


def _fetch(repo: str, revision: str | None, parent: "_Parent", *, code: bool) -> Path:
    if revision is not None and (".." in revision or revision.startswith("/")):
        raise ModelError(f"{revision!r} is not a name of a revision")  # it must not be a path
    if hub.is_commit(revision):
        snapshot = hub_cache.complete_snapshot(repo, revision, code=code)
        if snapshot is not None:
            return _use_cached(snapshot, repo, code=code)
    try:
        listing = hub.fetch_listing(repo, revision, code=code)
    except Exception as error:
        if not is_unreachable(error):
            raise
        snapshot = hub_cache.complete_snapshot(repo, revision, code=code)
        if snapshot is not None:
            reason = describe(error, repo, revision)
            _emit(note=f"{reason}; using the copy in the cache, {snapshot}")
            return _use_cached(snapshot, repo, code=code)
        peer_listing = listed_by_peers(parent.offers(), repo, revision, code=code)
        if peer_listing is None:
            raise
        _emit(note=f"{describe(error, repo, revision)}; using the files that other workers have")
        return _fetch_listed(peer_listing, revision, parent, code=code, reached=False)
    return _fetch_listed(listing, revision, parent, code=code, reached=True)


def _use_cached(snapshot: Path, repo: str, *, code: bool) -> Path:
    """Check a snapshot in the cache and report its size; returns its folder."""
    if not adapters.is_adapter(snapshot):
        check_config(snapshot / "config.json", repo, trust_remote_code=code)
    _emit(total_bytes=hub_cache.size_bytes(snapshot, code=code), missing_bytes=0)
    return snapshot


def _fetch_listed(
    listing: hub.HubListing, revision: str | None, parent: "_Parent", *, code: bool, reached: bool
) -> Path:
    names = [name for name in listing.names if "/" not in name]
    if not any(map(adapters.is_weights, names)):
        check_has_weights(names, listing.repo)
    blobs = hub_cache.blobs(listing)
    progress = _Progress(blobs.values())
    _emit(total_bytes=progress.total_bytes, missing_bytes=progress.missing_bytes)
    hub_cache.check_disk_space(progress.missing_bytes)
    if progress.missing_bytes:
        progress.use([RemoteFilePeer(offer) for offer in parent.offers()])
    # The small files first: the model may be rejected because of them.
    progress.fetch(blob for blob in blobs.values() if not blob.file.is_weights)
    if "config.json" in blobs:
        check_config(blobs["config.json"].path, listing.repo, trust_remote_code=code)
    progress.fetch(blobs.values())
    progress.report_sources()
    return hub_cache.link(listing, revision, code=code, reached=reached)


class _Progress:
    """Downloads contents, several at a time, and reports their progress."""

    def __init__(self, blobs: Iterable[BlobDownload]) -> None:
        self._blobs = set(blobs)
        self._pool = ThreadPoolExecutor(_PARALLEL_FETCHES)
        self._reported_bytes = -1
        self.total_bytes = sum(blob.file.size_bytes for blob in self._blobs)
        self.missing_bytes = sum(blob.missing_bytes for blob in self._blobs)

    def use(self, peers: Sequence[RemoteFilePeer]) -> None:
        """Download contents from these peers if they have them."""
        for blob in self._blobs:
            blob.use_peers(peers, lambda note: _emit(note=note))

    def report_sources(self) -> None:
        """Report the bytes by source."""
        total: Counter[str] = Counter()
        for blob in self._blobs:
            total.update(blob.bytes_by_source)
        if total:
            parts = [f"{count:,} bytes from {source}" for source, count in total.items()]
            _emit(came=", ".join(parts))

    def fetch(self, blobs: Iterable[BlobDownload]) -> None:
        """Download these contents. Raises the first error, while other downloads continue."""
        pending = {self._pool.submit(blob.fetch) for blob in set(blobs)}
        while pending:
            done, pending = wait(pending, timeout=_REPORT_INTERVAL_S, return_when=FIRST_EXCEPTION)
            self._report()
            for future in done:
                future.result()

    def _report(self) -> None:
        done_bytes = sum(blob.done_bytes for blob in self._blobs)
        if done_bytes != self._reported_bytes:
            self._reported_bytes = done_bytes
            _emit(done_bytes=done_bytes)


def _emit(**fields: str | int) -> None:
    try:
        print(json.dumps(fields), flush=True)
    except BrokenPipeError:
        os._exit(1)  # the parent has ended


class _Parent:
    """The connection to the process that started this one; this process ends with its parent.

    Args:
        asks: whether the parent replies to `ask_peers`.
    """

    def __init__(self, *, asks: bool) -> None:
        self._asks = asks
        self._offers: list[FilesOffer] | None = None
        self._answers: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def offers(self) -> list[FilesOffer]:
        """Return what other workers have; the parent is asked once."""
        if self._offers is None:
            self._offers = self._ask() if self._asks else []
        return self._offers

    def _ask(self) -> list[FilesOffer]:
        _emit(ask_peers=True)
        try:
            return _OFFERS.validate_json(self._answers.get(timeout=_REPLY_TIMEOUT_S))
        except (queue.Empty, ValidationError):
            return []

    def _listen(self) -> None:
        for line in sys.stdin.buffer:
            self._answers.put(line)
        os._exit(1)


if __name__ == "__main__":
    main()
