"""Offers this worker's model files to other workers, and asks others for their offers."""

import asyncio
import ipaddress
import logging
import socket
from pathlib import Path

import psutil

from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.codec import decode, encode
from shared.errors import BusError, ClusterError, DecodeError
from shared.ids import WorkerId, is_hub_id
from shared.messages.files import FilesOffer, FindFiles
from shared.settings.worker import PeerFilesSettings
from worker.peer_files.cached_files import CachedFiles, find_cached_files, hub_cache
from worker.peer_files.server import FileServer

logger = logging.getLogger(__name__)

_REPLY_WAIT_S = 1.0


class PeerFileSharing:
    """Answers and sends `FindFiles`. The file server starts with the first request for files that
    this worker has."""

    def __init__(
        self, settings: PeerFilesSettings, bus: Bus, worker: WorkerId, cache: Path | None = None
    ) -> None:
        """
        Args:
            cache: the folder of the hub's cache; None for the default folder.
        """
        self._settings = settings
        self._bus = bus
        self._id = worker
        self._cache = cache or hub_cache()
        self._server: FileServer | None = None

    @property
    def sent_bytes(self) -> int:
        """Bytes of contents sent to other workers."""
        return self._server.sent_bytes if self._server is not None else 0

    async def open(self) -> None:
        if self._settings.enabled:
            await self._bus.subscribe(subjects.FIND_FILES, self._on_find)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def find_offers(self, repo: str, revision: str | None) -> list[FilesOffer]:
        """Return the other workers' offers for a repository; empty without replies in time."""
        if not self._settings.enabled:
            return []
        request = encode(FindFiles(worker=self._id, repo=repo, revision=revision))
        try:
            replies = await self._bus.request_many(
                subjects.FIND_FILES, request, wait_s=_REPLY_WAIT_S
            )
        except BusError as error:
            logger.warning("other workers cannot be asked for %s: %s", repo, error.message)
            return []
        return [offer for reply in replies if (offer := _decode_offer(reply)) is not None]

    async def _on_find(self, message: IncomingMessage) -> None:
        try:
            request = decode(FindFiles, message.payload)
        except DecodeError as error:
            logger.warning("a request for files cannot be decoded: %s", error.message)
            return
        if request.worker == self._id or not is_hub_id(request.repo):
            return
        if not subjects.is_any_inbox(message.reply):
            return
        cached = await asyncio.to_thread(
            find_cached_files, self._cache, request.repo, request.revision
        )
        if not cached.contents:
            return
        try:
            await self._bus.publish(message.reply, encode(self._offer(cached)))
        except ClusterError as error:
            logger.warning(
                "files of %s cannot be offered to %s: %s", request.repo, request.worker,
                error.message,
            )  # fmt: skip

    def _offer(self, cached: CachedFiles) -> FilesOffer:
        if self._server is None:
            limit = self._settings.max_mb_per_s
            self._server = FileServer(
                self._settings.host,
                self._settings.port,
                bytes_per_s=limit * 1_000_000 if limit is not None else None,
            )
        complete = bool(cached.files) and set(cached.files.values()) <= cached.contents.keys()
        return FilesOffer(
            worker=self._id,
            urls=[f"https://{host}:{self._server.port}" for host in _hosts(self._settings.host)],
            authority=self._server.authority,
            ticket=self._server.new_ticket(cached.contents),
            contents=dict(cached.sizes_bytes),
            commit=cached.commit if complete else "",
            files=dict(cached.files) if complete else {},
        )


def _decode_offer(reply: IncomingMessage) -> FilesOffer | None:
    try:
        return decode(FilesOffer, reply.payload)
    except DecodeError as error:
        logger.warning("an offer of files cannot be decoded: %s", error.message)
        return None


def _hosts(bound: str) -> list[str]:
    """Return the addresses of this machine for other machines; loopback addresses come last."""
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
