"""A bad line between a NATS client and its server, or servers.

It loses, doubles and reorders messages towards the client, never protocol lines, and can cut,
refuse, slow and stall connections. Where the server speaks TLS it sees no messages, and does only
the latter. What it did is counted, so that a test can tell that faults
really happened.
"""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Self
from urllib.parse import urlsplit

from tests.access.roles import is_secured, register
from tests.nats_frames import Frame, FrameReader, ProtocolBroken, asks_for_tls, at_address

Cut = Literal["reset", "end"]
"""How a connection ends: by RST, or in good order by FIN."""
_SEGMENT_BYTES = 64 * 1024
_HOST = "127.0.0.1"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER for no time at all


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Shares (0 to 1) of the messages whose subject begins with `prefix`.

    A reordered message is held back until up to `overtaken_by` later ones of its subject have
    passed, or `held_s` are over.
    """

    drop: float = 0.0
    double: float = 0.0
    reorder: float = 0.0
    prefix: str = "_INBOX."
    overtaken_by: int = 3
    held_s: float = 0.05


@dataclass(slots=True)
class Counters:
    """What the proxy did. `reordered` are those that a later message overtook; `delayed`
    those that were held back while none came."""

    messages: int = 0
    dropped: int = 0
    doubled: int = 0
    reordered: int = 0
    delayed: int = 0
    connections: int = 0
    refused: int = 0
    cut: int = 0


@dataclass(slots=True)
class _Held:
    frame: Frame
    wait_for: int
    overtaken: int = 0


@dataclass(slots=True)
class Disturber:
    """Decides what becomes of each frame of one connection. No I/O: the caller sends what
    comes back, and calls `release` when `held_s` have passed since a frame was held.

    Args:
        on_held: called with a frame that is held back.
    """

    plan: Disturbance
    chance: random.Random
    counters: Counters
    on_held: Callable[[Frame], object]
    _held: dict[str, _Held] = field(default_factory=dict)

    def pass_on(self, frame: Frame) -> list[bytes]:
        """What is to be sent now that this frame has come."""
        if frame.subject is None or not frame.subject.startswith(self.plan.prefix):
            return [frame.raw]
        self.counters.messages += 1
        luck = self.chance.random()
        sent = [frame.raw]
        if luck < self.plan.drop:
            self.counters.dropped += 1
            sent = []
        elif luck < self.plan.drop + self.plan.double:
            self.counters.doubled += 1
            sent = [frame.raw, frame.raw]
        elif luck < self.plan.drop + self.plan.double + self.plan.reorder:
            if frame.subject not in self._held:
                wait_for = self.chance.randint(1, self.plan.overtaken_by)
                self._held[frame.subject] = _Held(frame, wait_for)
                self.on_held(frame)
                return []
        return [*sent, *self._overtaken(frame.subject, len(sent))]

    def release(self, frame: Frame) -> list[bytes]:
        """The bytes of a frame that was held back, if it still is."""
        assert frame.subject is not None
        held = self._held.get(frame.subject)
        if held is None or held.frame is not frame:
            return []
        del self._held[frame.subject]
        if held.overtaken:
            self.counters.reordered += 1
        else:
            self.counters.delayed += 1
        return [frame.raw]

    def _overtaken(self, subject: str, by: int) -> list[bytes]:
        held = self._held.get(subject)
        if held is None:
            return []
        held.overtaken += by
        return self.release(held.frame) if held.overtaken >= held.wait_for else []


class NatsProxy:
    """Listens on a port of its own and passes everything on to the first server that is there.

    Use it as `async with`; leaving cuts what is connected, and fails if the server sent
    something that is no NATS protocol.

    Attributes:
        disturbance: what happens to messages from now on; may be changed at any time.
        refusing: new connections are reset.
        delay_s: what passes waits for so long, in both directions; 64 kB at once at most.
    """

    def __init__(self, *server_urls: str, disturbance: Disturbance | None = None, seed: int = 0):
        self.servers = [_address(url) for url in server_urls]
        self.disturbance = disturbance or Disturbance()
        self.refusing = False
        self.delay_s = 0.0
        self.counters = Counters()
        self.problems: list[str] = []
        self.chance = random.Random(seed)
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._port = 0
        self._listener: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"nats://{_HOST}:{self._port}"

    @property
    def connections(self) -> int:
        return len(self._links)

    def stall(self) -> None:
        """Pass nothing on, in either direction, and close nothing."""
        self.flowing.clear()

    def resume(self) -> None:
        self.flowing.set()

    async def cut(self, how: Cut = "reset") -> None:
        """End every connection; returns when they are gone."""
        links = list(self._links)
        self.counters.cut += len(links)
        for link in links:
            link.close(reset=how == "reset")
        await asyncio.gather(*(link.closed.wait() for link in links))

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, _HOST, 0)
        self._port = self._listener.sockets[0].getsockname()[1]
        register(self.url, any(is_secured(f"nats://{host}:{port}") for host, port in self.servers))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        await self.cut()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._listener.wait_closed()
        assert self.problems == []

    def disturber(self, on_held: Callable[[Frame], object]) -> Disturber:
        return Disturber(self.disturbance, self.chance, self.counters, on_held)

    def as_ours(self, info: Frame) -> Frame:
        return at_address(info, _HOST, self._port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # Python 3.11 takes it for a fault
                await self._pass_on(reader, writer)
        finally:
            self._serving.discard(task)
            writer.transport.abort()  # where it was still connecting to a server

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            self.counters.refused += 1
            _close(writer, reset=True)
            return
        if (upstream := await self._connect()) is None:
            _close(writer, reset=True)
            return
        self.counters.connections += 1
        link = _Link(self, (reader, writer), upstream)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)
            link.closed.set()

    async def _connect(self) -> "_Streams | None":
        for server in self.servers:
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(*server)
        return None

    async def let_pass(self) -> None:
        """Return once what has come may go on."""
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self.flowing.wait()


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One client's connection and the one that was made for it to the server."""

    def __init__(self, proxy: NatsProxy, client: _Streams, server: _Streams) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._disturber = proxy.disturber(self._on_held)
        self._pumps: list[asyncio.Task[None]] = []
        self._encrypted = False
        self.closed = asyncio.Event()

    async def run(self) -> None:
        """Return when either side has ended, or `close` was called."""
        self._pumps = [
            asyncio.create_task(self._upwards()),
            asyncio.create_task(self._downwards()),
        ]
        try:
            await asyncio.wait(self._pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.close(reset=False)
            await asyncio.gather(*self._pumps, return_exceptions=True)
            for writer in (self._to_client, self._to_server):
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    def close(self, *, reset: bool) -> None:
        for pump in self._pumps:
            pump.cancel()
        if not self._to_client.transport.is_closing():
            _close(self._to_client, reset=reset)
        if not self._to_server.transport.is_closing():
            self._to_server.close()

    async def _upwards(self) -> None:
        with contextlib.suppress(OSError):
            while segment := await self._from_client.read(_SEGMENT_BYTES):
                await self._proxy.let_pass()
                self._to_server.write(segment)
                await self._to_server.drain()

    async def _downwards(self) -> None:
        frames = FrameReader()
        with contextlib.suppress(OSError):
            while segment := await self._from_server.read(_SEGMENT_BYTES):
                await self._proxy.let_pass()
                if self._encrypted:
                    self._to_client.write(segment)
                    await self._to_client.drain()
                    continue
                try:
                    arrived = frames.feed(segment)
                except ProtocolBroken as problem:
                    self._proxy.problems.append(str(problem))
                    return
                self._to_client.write(b"".join(self._passed_on(arrived)))
                await self._to_client.drain()

    def _passed_on(self, frames: list[Frame]) -> list[bytes]:
        self._disturber.plan = self._proxy.disturbance
        sent: list[bytes] = []
        for frame in frames:
            mine = self._proxy.as_ours(frame) if frame.operation == "INFO" else frame
            self._encrypted = self._encrypted or asks_for_tls(frame)
            sent += self._disturber.pass_on(mine)
        return sent

    def _on_held(self, frame: Frame) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(self._disturber.plan.held_s, self._release, frame)

    def _release(self, frame: Frame) -> None:
        if not self._proxy.flowing.is_set():
            self._on_held(frame)
        elif not self._to_client.transport.is_closing():
            self._to_client.write(b"".join(self._disturber.release(frame)))


def _address(url: str) -> tuple[str, int]:
    address = urlsplit(url)
    assert address.hostname is not None and address.port is not None
    return address.hostname, address.port


def _close(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        writer.transport.abort()
    else:
        writer.close()
