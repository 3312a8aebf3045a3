"""One file's content on its way into the cache: from the hub, or from workers that have it.

huggingface_hub 2.x cannot go on with a download that ended: it writes to a file with a random
name and deletes it, with hf_xet as well (`file_download._download_to_tmp_and_move`). So contents
are fetched here, over plain HTTP, into `blobs/ID.incomplete`, a name that `hf cache prune` knows.
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
from worker.models.hub import HubFile, Listing
from worker.models.hub_errors import endpoint, is_unreachable
from worker.peer_files.peer import Peer, PeerFailed

if TYPE_CHECKING:
    from hashlib import _Hash

_READ_BYTES = 1024 * 1024
_MAX_ANSWER_BYTES = 20_000_000_000  # the hub does not send more than 50 GB in one answer
_WAIT_S = 0.2
_RETRY_DELAYS_S = (0.5, 1.0, 2.0, 4.0)
_PARTIAL_CONTENT = 206
_NO_SUCH_RANGE = 416


class Blob:
    """A content, identified by its hash.

    `done_bytes` may be read by another thread than the one that runs `fetch`. It begins at 0
    also when a part is there already: that is read first, for the checksum. `came_from` has the
    bytes by who sent them.
    """

    def __init__(self, file: HubFile, listing: Listing, contents: Path, lock: Path) -> None:
        self.file = file
        self._url = hf_hub_url(listing.repo, file.name, revision=listing.commit)
        self._path = contents / file.content_id
        self._partial = contents / f"{file.content_id}.incomplete"
        self._lock = lock
        self._digest = self._new_digest()
        self._peers: list[Peer] = []
        self._note: Callable[[str], None] = lambda note: None
        self.came_from: Counter[str] = Counter()
        self.done_bytes = file.size_bytes if self._is_whole() else 0

    @property
    def path(self) -> Path:
        """Where the content is, or will be."""
        return self._path

    @property
    def missing_bytes(self) -> int:
        """What must still be sent."""
        if self._is_whole():
            return 0
        return max(0, self.file.size_bytes - _size_bytes(self._partial))

    def use(self, peers: Sequence[Peer], note: Callable[[str], None]) -> None:
        """Fetch from workers that have this content, and from the hub only what none sends.

        Args:
            note: told of peers that fail.
        """
        content, size_bytes = self.file.content_id, self.file.size_bytes
        having = [peer for peer in peers if peer.offers(content, size_bytes)]
        self._peers = random.sample(having, len(having))  # not all workers ask the same one
        self._note = note

    def fetch(self) -> None:
        """Fetch what is missing. Processes that want the same content wait for each other.

        Raises:
            ModelError: what was sent is not what the hub named.
            Exception: others, for `hub_errors.describe`.
        """
        if not self._is_whole():
            self._fetch_missing()
        self.done_bytes = self.file.size_bytes

    def _fetch_missing(self) -> None:
        for needed in (self._path.parent, self._lock.parent):
            needed.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if not self._is_whole():
                with self._partial.open("a+b") as file:
                    self._read_partial(file)
                    self._receive_whole(file)
                os.replace(self._partial, self._path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds huggingface_hub's lock of this content; progress while waiting is the holder's."""
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(WeakFileLock(self._lock, timeout=_WAIT_S))
                    break
                except Timeout:
                    self.done_bytes = min(_size_bytes(self._partial), self.file.size_bytes)
            yield

    def _read_partial(self, file: BinaryIO) -> None:
        """Take what an earlier download left into the checksum."""
        self._digest, self.done_bytes = self._new_digest(), 0
        if _size_bytes(self._partial) > self.file.size_bytes:
            file.truncate(0)
        file.seek(0)
        while part := file.read(_READ_BYTES):
            self._digest.update(part)
            self.done_bytes += len(part)

    def _receive_whole(self, file: BinaryIO) -> None:
        """Until the checksum is right. Where it is not, who sent a part is not asked again."""
        while True:
            senders = self._receive_from_peers(file)
            if self.done_bytes < self.file.size_bytes:
                self._receive_all(file)
            if self._digest.hexdigest() == self.file.content_id:
                return
            if not senders:
                raise self._wrong("the checksum differs")
            named = " and ".join(sorted(senders))
            self._note(
                f"{self.file.name} came from {named} with another checksum than "
                f"{self.file.content_id[:12]}...; it is fetched again, from others"
            )
            self._peers = [peer for peer in self._peers if peer.name not in senders]
            self._begin_anew(file)

    def _receive_from_peers(self, file: BinaryIO) -> set[str]:
        """As much as they send; returns who did."""
        senders: set[str] = set()
        for peer in self._peers:
            if self.done_bytes == self.file.size_bytes:
                break
            before_bytes = self.done_bytes
            try:
                for part in peer.read(self.file.content_id, before_bytes, self.file.size_bytes):
                    if self.done_bytes + len(part) > self.file.size_bytes:
                        raise PeerFailed("more bytes come")
                    self._take(part, file, peer.name)
            except PeerFailed as failure:
                self._note(f"{self.file.name}: worker {peer.name} does not send it: {failure}")
            if self.done_bytes > before_bytes:
                senders.add(peer.name)
        return senders

    def _take(self, part: bytes, file: BinaryIO, sender: str) -> None:
        file.write(part)
        file.flush()
        self._digest.update(part)
        self.done_bytes += len(part)
        self.came_from[sender] += len(part)

    def _begin_anew(self, file: BinaryIO) -> None:
        file.truncate(0)
        self._digest, self.done_bytes = self._new_digest(), 0

    def _receive_all(self, file: BinaryIO) -> None:
        """Receive until the end, through faults of the network that pass."""
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
                # A proxy may end an answer as if it were whole, so the rest is asked for.
                if self.done_bytes == before_bytes:
                    raise self._wrong(f"it ends after {self.done_bytes} bytes")

    def _receive(self, file: BinaryIO) -> None:
        """One answer, which may end early."""
        # A compressed answer could not be resumed.
        headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        if self.done_bytes or self.file.size_bytes > _MAX_ANSWER_BYTES:
            end = min(self.file.size_bytes, self.done_bytes + _MAX_ANSWER_BYTES)
            headers["Range"] = f"bytes={self.done_bytes}-{end - 1}"
        timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", self._url, headers=headers, timeout=timeout_s) as answer:
            if answer.status_code == _NO_SUCH_RANGE:
                raise self._wrong(f"it ends after {self.done_bytes} bytes")
            hf_raise_for_status(answer)
            if self.done_bytes and answer.status_code != _PARTIAL_CONTENT:
                self._begin_anew(file)
            for part in answer.iter_bytes():
                if self.done_bytes + len(part) > self.file.size_bytes:
                    raise self._wrong("more bytes come")
                self._take(part, file, "the hub")

    def _wrong(self, what: str) -> ModelError:
        """Deletes what was fetched, for it is of no use."""
        self._partial.unlink(missing_ok=True)
        return ModelError(
            f"{endpoint()} does not send {self.file.name} as it was announced, with "
            f"{self.file.size_bytes} bytes and checksum {self.file.content_id[:12]}...: {what}; "
            "what was fetched of it is deleted. Try again, and check proxies and HF_ENDPOINT"
        )

    def _new_digest(self) -> "_Hash":
        """SHA-256, or what git names a blob by (git-scm.com/book, Git Objects)."""
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
