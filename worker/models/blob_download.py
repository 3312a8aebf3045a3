"""Download of one file's content into the hub's cache, from the hub or from other workers.

huggingface_hub 2.x cannot resume an interrupted download: it writes to a file with a random name
and deletes it, with hf_xet as well (`file_download._download_to_tmp_and_move`). So this module
downloads contents over plain HTTP to `blobs/ID.incomplete`, a name that `hf cache prune` knows.
"""

import hashlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from filelock import Timeout
from huggingface_hub import constants, get_session, hf_hub_url, hf_raise_for_status
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    WeakFileLock,
    build_hf_headers,
)

from shared.errors import ModelError
from worker.models.hub import HubFile, HubListing
from worker.models.hub_errors import endpoint, is_unreachable
from worker.peer_files.peer import PeerDownloadFailed, RemoteFilePeer

if TYPE_CHECKING:
    from hashlib import _Hash

_READ_BYTES = 1024 * 1024
_MAX_RESPONSE_BYTES = 20_000_000_000  # the hub sends at most 50 GB in one response
_WAIT_S = 0.2
_RETRY_DELAYS_S = (0.5, 1.0, 2.0, 4.0)
_PARTIAL_CONTENT = 206
_NO_SUCH_RANGE = 416


class BlobDownload:
    """One content, identified by its hash.

    Attributes:
        done_bytes: progress; any thread may read it while another one runs `fetch`. Begins at 0
            even if a part was downloaded before, which is read first, for the checksum.
        bytes_by_source: received bytes by sender.
    """

    def __init__(self, file: HubFile, listing: HubListing, contents: Path, lock: Path) -> None:
        self.file = file
        self._url = hf_hub_url(listing.repo, file.name, revision=listing.commit)
        self._path = contents / file.content_id
        self._partial = contents / f"{file.content_id}.incomplete"
        self._lock = lock
        self._digest = self._new_digest()
        self._peers: list[RemoteFilePeer] = []
        self._note: Callable[[str], None] = lambda note: None
        self.bytes_by_source: Counter[str] = Counter()
        self.done_bytes = file.size_bytes if self._is_whole() else 0

    @property
    def path(self) -> Path:
        """The file of the content, which may not exist yet."""
        return self._path

    @property
    def missing_bytes(self) -> int:
        """Bytes that must still be downloaded."""
        if self._is_whole():
            return 0
        return max(0, self.file.size_bytes - _size_bytes(self._partial))

    def use_peers(self, peers: Sequence[RemoteFilePeer], note: Callable[[str], None]) -> None:
        """Fetch from other workers that have this content, and the rest from the hub.

        Args:
            note: called with a message about each peer that fails.
        """
        content, size_bytes = self.file.content_id, self.file.size_bytes
        offering = [peer for peer in peers if peer.offers(content, size_bytes)]
        self._peers = random.sample(offering, len(offering))  # spreads the load over the peers
        self._note = note

    def fetch(self) -> None:
        """Download what is missing. A lock serializes processes that need the same content.

        Raises:
            ModelError: the size or checksum differs from the hub's listing.
            Exception: any other error; see `hub_errors.describe`.
        """
        if not self._is_whole():
            self._fetch_missing()
        self.done_bytes = self.file.size_bytes

    def _fetch_missing(self) -> None:
        for folder in (self._path.parent, self._lock.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if not self._is_whole():
                with self._partial.open("a+b") as file:
                    self._read_partial(file)
                    self._receive_whole(file)
                os.replace(self._partial, self._path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold huggingface_hub's lock of this content; while waiting, report the holder's
        progress."""
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(WeakFileLock(self._lock, timeout=_WAIT_S))
                    break
                except Timeout:
                    self.done_bytes = min(_size_bytes(self._partial), self.file.size_bytes)
            yield

    def _read_partial(self, file: BinaryIO) -> None:
        """Add what an earlier download left to the checksum."""
        self._digest, self.done_bytes = self._new_digest(), 0
        if _size_bytes(self._partial) > self.file.size_bytes:
            file.truncate(0)
        file.seek(0)
        while part := file.read(_READ_BYTES):
            self._digest.update(part)
            self.done_bytes += len(part)

    def _receive_whole(self, file: BinaryIO) -> None:
        """Receive until the checksum matches. After a mismatch, peers that sent a part are not
        asked again."""
        while True:
            senders = self._receive_from_peers(file)
            if self.done_bytes < self.file.size_bytes:
                self._receive_all(file)
            if self._digest.hexdigest() == self.file.content_id:
                return
            if not senders:
                raise self._mismatch("the checksum differs")
            named = " and ".join(sorted(senders))
            self._note(
                f"{self.file.name} from {named} does not have the checksum "
                f"{self.file.content_id[:12]}...; it is downloaded again from other sources"
            )
            self._peers = [peer for peer in self._peers if peer.name not in senders]
            self._restart(file)

    def _receive_from_peers(self, file: BinaryIO) -> set[str]:
        """Receive as much as the peers send; returns the names of those that sent a part."""
        senders: set[str] = set()
        for peer in self._peers:
            if self.done_bytes == self.file.size_bytes:
                break
            before_bytes = self.done_bytes
            try:
                for part in peer.read(self.file.content_id, before_bytes, self.file.size_bytes):
                    if self.done_bytes + len(part) > self.file.size_bytes:
                        raise PeerDownloadFailed("it sends too many bytes")
                    self._append(part, file, peer.name)
            except PeerDownloadFailed as failure:
                self._note(f"{self.file.name}: download from worker {peer.name} failed: {failure}")
            if self.done_bytes > before_bytes:
                senders.add(peer.name)
        return senders

    def _append(self, part: bytes, file: BinaryIO, sender: str) -> None:
        file.write(part)
        file.flush()
        self._digest.update(part)
        self.done_bytes += len(part)
        self.bytes_by_source[sender] += len(part)

    def _restart(self, file: BinaryIO) -> None:
        file.truncate(0)
        self._digest, self.done_bytes = self._new_digest(), 0

    def _receive_all(self, file: BinaryIO) -> None:
        """Receive until the end; retries after network errors."""
        failures = 0
        while self.done_bytes < self.file.size_bytes:
            before_bytes = self.done_bytes
            try:
                self._receive(file)
            except Exception as error:
                failures = 0 if self.done_bytes > before_bytes else failures + 1
                if not is_unreachable(error) or failures >= len(_RETRY_DELAYS_S):
                    raise
                time.sleep(_RETRY_DELAYS_S[failures])
            else:
                # A proxy may end a response early without an error, so the rest is requested.
                if self.done_bytes == before_bytes:
                    raise self._mismatch(f"it ends after {self.done_bytes} bytes")

    def _receive(self, file: BinaryIO) -> None:
        """Receive one response, which may end early."""
        # A compressed response could not be resumed.
        headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        if self.done_bytes or self.file.size_bytes > _MAX_RESPONSE_BYTES:
            end = min(self.file.size_bytes, self.done_bytes + _MAX_RESPONSE_BYTES)
            headers["Range"] = f"bytes={self.done_bytes}-{end - 1}"
        timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", self._url, headers=headers, timeout=timeout_s) as response:
            if response.status_code == _NO_SUCH_RANGE:
                raise self._mismatch(f"it ends after {self.done_bytes} bytes")
            hf_raise_for_status(response)
            if self.done_bytes and response.status_code != _PARTIAL_CONTENT:
                self._restart(file)
            for part in response.iter_bytes():
                if self.done_bytes + len(part) > self.file.size_bytes:
                    raise self._mismatch("it has too many bytes")
                self._append(part, file, "the hub")

    def _mismatch(self, reason: str) -> ModelError:
        """Delete the partial download, which cannot be used, and return the error."""
        self._partial.unlink(missing_ok=True)
        return ModelError(
            f"{endpoint()} does not send {self.file.name} as listed, with "
            f"{self.file.size_bytes} bytes and checksum {self.file.content_id[:12]}...: {reason}; "
            "the partial download was deleted. Try again, and check proxies and HF_ENDPOINT"
        )

    def _new_digest(self) -> "_Hash":
        """Return a SHA-256 digest, or that of git's blob ids (git-scm.com/book, Git Objects)."""
        if len(self.file.content_id) == hashlib.sha256().digest_size * 2:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.file.size_bytes, usedforsecurity=False)

    def _is_whole(self) -> bool:
        return self._path.is_file() and _size_bytes(self._path) == self.file.size_bytes


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
