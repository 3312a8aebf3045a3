"""Download of contents that another worker offers."""

import http.client
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from urllib.parse import urlsplit

from shared.messages.files import FilesOffer

HOST_NAME = "peer-files"
"""The host name in the certificate, as clients verify the authority, not the address."""
_CONNECT_TIMEOUT_S = 3.0
_READ_TIMEOUT_S = 15.0
_PIECE_BYTES = 256 * 1024


class PeerDownloadFailed(Exception):
    """A peer did not send what it offered; the message is for logs."""


class RemoteFilePeer:
    """Another worker, and its offer.

    Attributes:
        name: the id of the worker.
    """

    def __init__(self, offer: FilesOffer) -> None:
        self.name = offer.worker
        self._offer = offer
        self._urls = list(offer.urls)

    def offers(self, content: str, size_bytes: int) -> bool:
        return self._offer.contents.get(content) == size_bytes

    def read(self, content: str, begin: int, size_bytes: int) -> Iterator[bytes]:
        """Yield the pieces of a content from byte `begin` on. The caller verifies them.

        Raises:
            PeerDownloadFailed: the peer sends nothing, or the transfer ends early.
        """
        try:
            connection = self._connect()
            try:
                yield from self._receive(connection, content, begin, size_bytes)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise PeerDownloadFailed(f"{type(error).__name__}: {error}") from None

    def _receive(
        self, connection: http.client.HTTPSConnection, content: str, begin: int, size_bytes: int
    ) -> Iterator[bytes]:
        headers = {"Authorization": f"Bearer {self._offer.ticket}", "Range": f"bytes={begin}-"}
        connection.request("GET", f"/{content}", headers=headers)
        response = connection.getresponse()
        content_range = response.headers.get("Content-Range")
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            raise PeerDownloadFailed(f"it answers with status {response.status}")
        if content_range != f"bytes {begin}-{size_bytes - 1}/{size_bytes}":
            raise PeerDownloadFailed(f"it sent another range of bytes: {str(content_range)[:80]!r}")
        while piece := response.read(_PIECE_BYTES):
            yield piece

    def _connect(self) -> http.client.HTTPSConnection:
        """Connect to the first address that answers with a valid certificate. Later connections
        try this address first, and skip addresses that timed out."""
        failed: Exception = PeerDownloadFailed("it offers no address")
        timed_out: list[str] = []
        for url in self._urls:
            parts = urlsplit(url)
            connection = _PinnedConnection(parts.hostname or "", parts.port, self._offer.authority)
            try:
                connection.connect()
            except (OSError, ValueError) as error:
                connection.close()
                failed = error
                if isinstance(error, TimeoutError):
                    timed_out.append(url)
                continue
            # Thread-safe: other threads replace the whole list, too.
            self._urls = [url, *(each for each in self._urls if each not in (url, *timed_out))]
            return connection
        raise failed


class _PinnedConnection(http.client.HTTPSConnection):
    """Trusts the certificates of one authority, at any address."""

    def __init__(self, host: str, port: int | None, authority: str) -> None:
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.load_verify_locations(cadata=authority)
        super().__init__(host, port, timeout=_CONNECT_TIMEOUT_S, context=self._tls)

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=HOST_NAME)
        self.sock.settimeout(_READ_TIMEOUT_S)
