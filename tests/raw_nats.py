"""A NATS connection without a client library, for what those refuse to send."""

import asyncio
import json
from typing import Any, Self
from urllib.parse import urlsplit

_CONNECT = {"verbose": False, "pedantic": False, "lang": "raw", "version": "0"}


class RawConnection:
    """Speaks the protocol by hand. Use it as a context manager."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)

    async def __aenter__(self) -> Self:
        host, port = self._url.hostname, self._url.port
        self._reader, self._writer = await asyncio.open_connection(host, port)
        info = (await self._reader.readline()).removeprefix(b"INFO ")
        self.info: dict[str, Any] = json.loads(info)
        self.send(b"CONNECT %s\r\n" % json.dumps(_CONNECT).encode())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    def send(self, line: bytes) -> None:
        self._writer.write(line)

    def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        line = " ".join(part for part in ("PUB", subject, reply, str(len(payload))) if part)
        self.send(line.encode() + b"\r\n" + payload + b"\r\n")

    async def last_words(self) -> bytes:
        """All that the server says until it closes the connection."""
        return await self._reader.read()
