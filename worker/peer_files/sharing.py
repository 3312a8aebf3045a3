"""The part of a worker that offers others what it has, and asks them for what it needs."""

import asyncio
import ipaddress
import logging
import socket
from pathlib import Path

import psutil

from shared import subjects
from shared.bus import Bus, BusMessage
from shared.codec import decode, encode
from shared.errors import BusError, ClusterError, DecodeError
from shared.ids import WorkerId, is_hub_id
from shared.messages.files import FilesOffer, FindFiles
from shared.settings.worker import PeerFilesSettings
from worker.peer_files.kept_files import CachedFiles, hub_cache, kept_files
from worker.peer_files.server import FileServer

logger = logging.getLogger(__name__)

_ANSWERS_S = 1.0


class Sharing:
    """Nothing listens for connections before somebody asks for what is here."""

    def __init__(
        self, settings: PeerFilesSettings, bus: Bus, worker: WorkerId, cache: Path | None = None
    ) -> None:
        """
        Args:
            cache: the hub's on this machine, unless where it is by default.
        """
        self._settings = settings
        self._bus = bus
        self._id = worker
        self._cache = cache or hub_cache()
        self._server: FileServer | None = None

    @property
    def sent_bytes(self) -> int:
        """Of contents, to others."""
        return self._server.sent_bytes if self._server is not None else 0

    async def open(self) -> None:
        if self._settings.enabled:
            await self._bus.subscribe(subjects.FIND_FILES, self._on_find)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def ask(self, repo: str, revision: str | None) -> list[FilesOffer]:
        """What the others have of a repository; nothing where nobody says anything in time."""
        if not self._settings.enabled:
            return []
        question = encode(FindFiles(worker=self._id, repo=repo, revision=revision))
        try:
            answers = await self._bus.request_many(subjects.FIND_FILES, question, wait_s=_ANSWERS_S)
        except BusError as error:
            logger.warning("other workers cannot be asked for %s: %s", repo, error.message)
            return []
        return [offer for answer in answers if (offer := _read(answer)) is not None]

    async def _on_find(self, message: BusMessage) -> None:
        try:
            asked = decode(FindFiles, message.payload)
        except DecodeError as error:
            logger.warning("a question for files cannot be read: %s", error.message)
            return
        if asked.worker == self._id or not is_hub_id(asked.repo):
            return
        if not subjects.is_any_inbox(message.reply):
            return
        kept = await asyncio.to_thread(kept_files, self._cache, asked.repo, asked.revision)
        if not kept.contents:
            return
        try:
            await self._bus.publish(message.reply, encode(self._offer(kept)))
        except ClusterError as error:
            logger.warning("%s asks for files of %s: %s", asked.worker, asked.repo, error.message)

    def _offer(self, kept: CachedFiles) -> FilesOffer:
        if self._server is None:
            limit = self._settings.max_mb_per_s
            self._server = FileServer(
                self._settings.host,
                self._settings.port,
                bytes_per_s=limit * 1_000_000 if limit is not None else None,
            )
        complete = bool(kept.files) and set(kept.files.values()) <= kept.contents.keys()
        return FilesOffer(
            worker=self._id,
            urls=[f"https://{host}:{self._server.port}" for host in _hosts(self._settings.host)],
            authority=self._server.authority,
            ticket=self._server.new_ticket(kept.contents),
            contents=dict(kept.sizes_bytes),
            commit=kept.commit if complete else "",
            files=dict(kept.files) if complete else {},
        )


def _read(answer: BusMessage) -> FilesOffer | None:
    try:
        return decode(FilesOffer, answer.payload)
    except DecodeError as error:
        logger.warning("an offer of files cannot be read: %s", error.message)
        return None


def _hosts(bound: str) -> list[str]:
    """Under which others reach this machine; what reaches it from itself alone comes last."""
    address = ipaddress.ip_address(bound)
    if not address.is_unspecified:
        return [_in_url(address)]
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    known = [entry.address for each in psutil.net_if_addrs().values() for entry in each
             if entry.family == family]  # fmt: skip
    found = [ipaddress.ip_address(each.partition("%")[0]) for each in known]
    usable = [each for each in found if not each.is_link_local]
    return [_in_url(each) for each in sorted(usable, key=lambda each: each.is_loopback)][:64]


def _in_url(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    return f"[{address}]" if address.version == 6 else str(address)
