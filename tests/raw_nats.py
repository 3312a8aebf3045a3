"""A NATS connection without a client library, for what those refuse to send."""

import asyncio
import base64
import contextlib
import json
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import nkeys

from shared.bus.options import client_options
from shared.settings.nats import NatsSettings

_CONNECT = {"verbose": False, "pedantic": False, "lang": "raw", "version": "0", "headers": True}


def publish(subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    """The command, whatever the bytes."""
    line = b" ".join(part for part in (b"PUB", subject, reply, b"%d" % len(payload)) if part)
    return line + b"\r\n" + payload + b"\r\n"


class RawConnection:
    """Speaks the protocol by hand. Use it as a context manager."""

    def __init__(self, settings: NatsSettings) -> None:
        self._settings = settings
        self._url = urlsplit(settings.servers[0])

    async def __aenter__(self) -> Self:
        host, port = self._url.hostname, self._url.port
        self._reader, self._writer = await asyncio.open_connection(host, port)
        info = (await self._reader.readline()).removeprefix(b"INFO ")
        self.info: dict[str, Any] = json.loads(info)
        options = client_options(self._settings, name="raw", inbox_prefix="")
        if "tls" in options:
            await self._writer.start_tls(options["tls"], server_hostname=host)
        proof = self._proof(options["nkeys_seed"]) if "nkeys_seed" in options else {}
        self.send(b"CONNECT %s\r\n" % json.dumps(_CONNECT | proof).encode())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):  # which the server may have closed before
            await self._writer.wait_closed()

    def send(self, line: bytes) -> None:
        self._writer.write(line)

    def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        self.send(publish(subject.encode(), payload, reply.encode()))

    async def round_trip(self) -> list[bytes]:
        """Wait until the server has read all that was sent; what it said meanwhile.

        Raises:
            ConnectionError: it has closed the connection.
        """
        self.send(b"PING\r\n")
        said = []
        while (line := await self._reader.readline()) != b"PONG\r\n":
            if not line:
                raise ConnectionError("the server closed the connection")
            said.append(line)
        return said

    def _proof(self, seed: str) -> dict[str, str]:
        """That the server's nonce was signed by who has the seed."""
        key = nkeys.from_seed(bytearray(Path(seed).read_bytes()))
        signature = base64.urlsafe_b64encode(key.sign(self.info["nonce"].encode()))
        return {"nkey": key.public_key.decode(), "sig": signature.decode().rstrip("=")}

    async def drain(self) -> None:
        """Wait until the server takes in more.

        Raises:
            ConnectionError: it has closed the connection.
        """
        if self._writer.is_closing():
            raise ConnectionError("the server closed the connection")
        await self._writer.drain()

    async def discard(self) -> None:
        """Read on, until the server closes the connection."""
        with contextlib.suppress(OSError):
            while await self._reader.read(65536):
                pass

    async def line(self) -> bytes:
        """The next line that the server says; empty once it has closed the connection."""
        return await self._reader.readline()

    async def last_words(self) -> bytes:
        """All that the server says until it closes the connection."""
        return await self._reader.read()
