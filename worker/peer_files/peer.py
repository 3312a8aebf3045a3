"""Fetching from another worker what it offers."""

import http.client
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from urllib.parse import urlsplit

from shared.messages.files import FilesOffer

HOST_NAME = "peer-files"
"""The name in the certificate: who connects knows the authority, not the address."""
_CONNECT_S = 3.0
_SILENCE_S = 15.0
_PIECE_BYTES = 256 * 1024


class PeerFailed(Exception):
    """A peer did not send what it offered. Its text is for people."""


class Peer:
    """
    Attributes:
        name: the worker's.
    """

    def __init__(self, offer: FilesOffer) -> None:
        self.name = offer.worker
        self._offer = offer
        self._urls = list(offer.urls)

    def offers(self, content: str, size_bytes: int) -> bool:
        return self._offer.contents.get(content) == size_bytes

    def read(self, content: str, begin: int, size_bytes: int) -> Iterator[bytes]:
        """The rest of a content from a byte on. It is the caller's to check what comes.

        Raises:
            PeerFailed: it does not come, or not to its end.
        """
        try:
            connection = self._connected()
            try:
                yield from self._received(connection, content, begin, size_bytes)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise PeerFailed(f"{type(error).__name__}: {error}") from None

    def _received(
        self, connection: http.client.HTTPSConnection, content: str, begin: int, size_bytes: int
    ) -> Iterator[bytes]:
        headers = {"Authorization": f"Bearer {self._offer.ticket}", "Range": f"bytes={begin}-"}
        connection.request("GET", f"/{content}", headers=headers)
        answer = connection.getresponse()
        place = answer.headers.get("Content-Range")
        if answer.status != HTTPStatus.PARTIAL_CONTENT:
            raise PeerFailed(f"it answers with status {answer.status}")
        if place != f"bytes {begin}-{size_bytes - 1}/{size_bytes}":
            raise PeerFailed(f"it has other bytes: {str(place)[:80]!r}")
        while piece := answer.read(_PIECE_BYTES):
            yield piece

    def _connected(self) -> http.client.HTTPSConnection:
        """To the first address that answers with the right certificate: it comes first from now
        on, and those that let us wait come no more."""
        failed: Exception = PeerFailed("it names no address")
        silent: list[str] = []
        for url in self._urls:
            parts = urlsplit(url)
            connection = _Pinned(parts.hostname or "", parts.port, self._offer.authority)
            try:
                connection.connect()
            except (OSError, ValueError) as error:
                connection.close()
                failed = error
                if isinstance(error, TimeoutError):
                    silent.append(url)
                continue
            # Other threads do the same; each leaves a whole list.
            self._urls = [url, *(one for one in self._urls if one not in (url, *silent))]
            return connection
        raise failed


class _Pinned(http.client.HTTPSConnection):
    """Trusts a certificate of one authority, wherever it is met."""

    def __init__(self, host: str, port: int | None, authority: str) -> None:
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.load_verify_locations(cadata=authority)
        super().__init__(host, port, timeout=_CONNECT_S, context=self._tls)

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=HOST_NAME)
        self.sock.settimeout(_SILENCE_S)
