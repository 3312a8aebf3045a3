"""A caller that costs next to nothing: raw HTTP/1.1 over a kept connection, no library between
what is measured and the clock."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import orjson

CHAT = "/v1/chat/completions"
_LIMIT = 1 << 20


class HttpCaller:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str) -> AsyncIterator["HttpCaller"]:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=_LIMIT)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    async def ask(self, body: Mapping[str, Any], path: str = CHAT) -> bytes:
        """The body of a whole answer."""
        await self._send(path, body)
        head = await self._head()
        _, _, after = head.lower().partition(b"content-length:")
        return await self._reader.readexactly(int(after.split(b"\r\n", 1)[0]))

    async def stream(self, body: Mapping[str, Any], path: str = CHAT) -> AsyncIterator[bytes]:
        """The parts of an answer as they come; it must end well."""
        await self._send(path, {**body, "stream": True})
        await self._head()
        last = b""
        while size := int(await self._reader.readline(), 16):
            last = (await self._reader.readexactly(size + 2))[:-2]
            yield last
        await self._reader.readline()
        if not last.endswith(b"[DONE]\n\n"):
            raise SystemExit(f"a stream ended badly: {last[-300:]!r}")

    async def _send(self, path: str, body: Mapping[str, Any]) -> None:
        data = orjson.dumps(body)
        head = (
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        self._writer.write(head.encode() + data)
        await self._writer.drain()

    async def _head(self) -> bytes:
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"refused: {head!r} {await self._reader.read(500)!r}")
        return head
