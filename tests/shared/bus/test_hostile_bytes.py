"""Bytes that only a bare socket sends: none changes what a process reads, or ends its reading."""

import asyncio
import logging
import re
import time
from collections import deque
from itertools import pairwise
from random import Random

import nats.protocol.parser
import pytest

from shared.bus import Bus, IncomingMessage
from shared.bus.client import PatchedNatsClient
from shared.bus.parser import ProtocolParser
from shared.bus.service import Endpoint, MicroService
from shared.errors import BusError
from shared.settings.nats import NatsSettings
from tests.nats_frames import Frame, FrameReader
from tests.raw_nats import RawConnection, publish

pytestmark = pytest.mark.anyio

HOSTILE_BYTES = (
    b"\x0b",
    b"\x0c",
    b"\r",
    b"\x00",
    b"\x1c",
    b"\x1b[2J",
    b"\x7f",
    b"\x85",
    b"\xff",
    "\x85".encode(),
    "\u202e".encode(),
)
"""What the server forwards inside a token of a subject, and no permission can exclude."""


class Listener:
    """What one subscription receives; a message to `until` ends the wait."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.messages: list[IncomingMessage] = []
        self._last = asyncio.Event()

    async def open(self, subject: str) -> None:
        await self._bus.subscribe(subject, self._take)
        await self._bus.flush()

    async def _take(self, message: IncomingMessage) -> None:
        if message.payload == b"last":
            self._last.set()
        else:
            self.messages.append(message)

    async def until_last(self) -> None:
        await asyncio.wait_for(self._last.wait(), 30)


async def listen(bus: Bus, subject: str) -> Listener:
    listener = Listener(bus)
    await listener.open(subject)
    return listener


def publish_with_headers(subject: bytes, headers: bytes, payload: bytes = b"") -> bytes:
    sizes = b"%d %d" % (len(headers), len(headers) + len(payload))
    return b"HPUB " + subject + b" " + sizes + b"\r\n" + headers + payload + b"\r\n"


@pytest.mark.parametrize("hostile", HOSTILE_BYTES, ids=repr)
async def test_a_subject_chooses_no_subscription(
    bus: Bus, nats_settings: NatsSettings, hostile: bytes
) -> None:
    """nats-py splits at `\\x0b`, `\\x0c` and `\\r`: what follows became the subscription's id."""
    secret = await listen(bus, "t.secret")
    wide = await listen(bus, "t.wide.*")
    before = bus.connections
    async with RawConnection(nats_settings) as eve:
        for sid in range(1, 40):
            eve.send(publish(b"t.wide.x" + hostile + b"%d" % sid, b"forged"))
            await eve.round_trip()  # the server loses a `\r` between two TCP segments
        eve.send(publish(b"t.wide.x", b"in order"))
        eve.send(publish(b"t.wide.x", b"last"))
        eve.send(publish(b"t.secret", b"last"))
        await wide.until_last()
        await secret.until_last()
    assert secret.messages == []
    assert [each.payload for each in wide.messages] == [b"in order"]
    assert bus.connections == before
    assert bus.statistics.dropped == {"subject": 39}


@pytest.mark.parametrize("hostile", HOSTILE_BYTES, ids=repr)
async def test_a_reply_subject_ends_no_connection(
    bus: Bus, nats_settings: NatsSettings, hostile: bytes
) -> None:
    wide = await listen(bus, "t.wide.*")
    before = bus.connections
    async with RawConnection(nats_settings) as eve:
        eve.send(publish(b"t.wide.x", b"forged", reply=b"_INBOX.local.x" + hostile + b"7"))
        eve.send(publish(b"t.wide.x", b"in order", reply=b"_INBOX.local.x"))
        eve.send(publish(b"t.wide.x", b"last"))
        await wide.until_last()
    assert [(each.payload, each.reply) for each in wide.messages] == [
        (b"in order", "_INBOX.local.x")
    ]
    assert bus.connections == before
    assert bus.statistics.dropped == {"subject": 1}


HEADERS = (
    b"",
    b"N",
    b"NATS/1.0",
    b"NATS/1.0\r\n",
    b"NATS/1.0 ",
    b"NATS/1.0 \xff\xfe\xfd",
    b"NATS/1.0 \xff\xfe\xfd\r\n\r\n",
    b"NATS/1.0 503 \xff\r\n\r\n",
    b"NATS/1.0 100\r\n\xff: \xff\r\n\r\n",
    b"NATS/1.0\r\nx: \xff\r\n\r\n",
    b"NATS/1.0\r\n\xff: x\r\n\r\n",
    b"NATS/1.0\r\n" + b"a:" * 5000 + b"\r\n\r\n",
    b"NATS/1.0\r\n: \r\n \r\n\r\n",
    b"\x00" * 64,
)


@pytest.mark.parametrize("headers", HEADERS, ids=lambda headers: repr(headers[:24]))
async def test_headers_end_no_reading(
    bus: Bus, nats_settings: NatsSettings, headers: bytes
) -> None:
    """nats-py stops reading at some of these, and is deaf until its pings time out."""
    wide = await listen(bus, "t.wide.*")
    before = bus.connections
    async with RawConnection(nats_settings) as eve:
        eve.send(publish_with_headers(b"t.wide.x", headers, b"with headers"))
        eve.send(publish(b"t.wide.x", b"last"))
        await wide.until_last()
    assert bus.connections == before
    assert {each.payload for each in wide.messages} <= {b"with headers"}
    assert len(wide.messages) + bus.statistics.dropped.total() == 1
    assert (await bus.request_many("t.nobody", b"", wait_s=5)) == []  # 503 has headers, too


async def test_a_flood_of_undecodable_messages_is_one_line_of_the_log(
    bus: Bus, nats_settings: NatsSettings, caplog: pytest.LogCaptureFixture
) -> None:
    wide = await listen(bus, "t.wide.*")
    async with RawConnection(nats_settings) as eve:
        for _ in range(1000):
            eve.send(publish(b"t.wide.x\x1b[2J", b"forged"))
        eve.send(publish(b"t.wide.x", b"last"))
        with caplog.at_level(logging.DEBUG):
            await wide.until_last()
    (line,) = caplog.messages
    assert re.search(r"a message was dropped \(subject\): .*\\x1b", line)
    assert "\x1b" not in line


async def test_a_handler_that_fails_gets_the_next_message(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    handled: asyncio.Queue[bytes] = asyncio.Queue()
    errors = deque([ValueError("odd"), RecursionError(), asyncio.CancelledError(), MemoryError()])

    async def handler(message: IncomingMessage) -> None:
        if errors:
            raise errors.popleft()
        await handled.put(message.payload)

    await bus.subscribe("t.fails", handler)
    for number in range(5):
        await bus.publish("t.fails", b"%d" % number)
    assert await asyncio.wait_for(handled.get(), 30) == b"4"
    assert bus.statistics.failed == {"t.fails": 4}
    lines = [each for each in caplog.messages if "t.fails" in each]
    assert lines == [f"the handler of t.fails failed ({times})" for times in (1, 2, 4)]


@pytest.mark.parametrize(
    ("subject", "reply"),
    [
        ("t.x y", ""),
        ("t.x\r\nPUB t.orders 0\r\n\r\n", ""),
        ("t.x\x0b7", ""),
        ("", ""),
        ("t.é", ""),
        ("t.x", "_INBOX.x y"),
        ("t.x", "_INBOX." + "x" * 4000),
        ("t." + "x" * 4000, ""),
    ],
    ids=lambda text: repr(text[:24]),
)
async def test_what_is_no_subject_is_not_sent(bus: Bus, subject: str, reply: str) -> None:
    """The server would end the connection over some of these lines, and read others as several."""
    before = bus.connections
    with pytest.raises(BusError, match="subject"):
        await bus.publish(subject, b"", reply=reply)
    with pytest.raises(BusError, match="subject"):
        bus.send(subject, b"", reply=reply)
    await bus.flush()
    assert bus.connections == before


class Recorder(PatchedNatsClient):
    """Notes what its parser calls."""

    def __init__(self) -> None:
        super().__init__()
        self.parser = ProtocolParser(self)
        self.taken: list[tuple[object, ...]] = []

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        self.taken.append((sid, subject, reply, data, headers))

    async def _process_ping(self) -> None:
        self.taken.append(("PING",))

    async def _process_err(self, err_msg: str) -> None:
        self.taken.append(("-ERR", err_msg))

    def drop(self, subject: bytes) -> None:
        self.taken.append(("dropped", subject))


STREAM = (
    b"MSG t.one 7 5\r\nhello\r\n"
    b"MSG t.one 7 _INBOX.a.b 0\r\n\r\n"
    b"PING\r\n"
    b"HMSG t.two 12 r 12 17\r\nNATS/1.0\r\n\r\nMSG x\r\n"
    b"MSG t.\xc3\xa9 7 2\r\nok\r\n"
    b"MSG t.x\x0b3 7 4\r\n\r\n\r\n\r\n"
    b"HMSG t.x\xff 7 \r\x0b1 5 10\r\nabcdefghij\r\n"
    b"-ERR 'Permissions Violation for Publish to \"t.\xff\"'\r\n"
    b"+OK\r\n"
    b"MSG t.three 9 2\r\n\r\n\r\n"
)
TAKEN: list[tuple[object, ...]] = [
    (7, b"t.one", b"", b"hello", b""),
    (7, b"t.one", b"_INBOX.a.b", b"", b""),
    ("PING",),
    (12, b"t.two", b"r", b"MSG x", b"NATS/1.0\r\n\r\n"),
    (7, b"t.\xc3\xa9", b"", b"ok", b""),
    ("dropped", b"t.x\x0b3"),
    ("dropped", b"t.x\xff"),
    ("-ERR", "'permissions violation for publish to \"t.\\xff\"'"),
    (9, b"t.three", b"", b"\r\n", b""),
]


async def test_segments_cut_anywhere_are_read_alike() -> None:
    for step in (1, 2, 3, 7, 16, 1000):
        client = Recorder()
        cuts = [*range(0, len(STREAM), step), len(STREAM)]
        for start, end in pairwise(cuts):
            await client.parser.parse(STREAM[start:end])
        assert client.taken == TAKEN


async def test_random_bytes_in_subjects_never_move_the_next_message() -> None:
    """Whatever a publisher writes between the blanks, the frames stay those of the server."""
    random = Random(7)
    forbidden = b" \t\n"
    for _ in range(3000):
        client = Recorder()
        size = random.randint(1, 12)
        subject = bytes(byte for byte in random.randbytes(size) if byte not in forbidden) or b"x"
        payload = random.randbytes(random.randint(0, 40))
        line = b"MSG " + subject + b" 4 " + b"%d" % len(payload) + b"\r\n"
        data = line + payload + b"\r\nMSG next 5 2\r\nok\r\n"
        cut = random.randint(0, len(data))
        await client.parser.parse(data[:cut])
        await client.parser.parse(data[cut:])
        assert client.taken[-1] == (5, b"next", b"", b"ok", b"")
        assert client.taken[0] in [(4, subject, b"", payload, b""), ("dropped", subject)]
        assert len(client.taken) == 2


def test_the_proxy_of_the_tests_reads_the_same_frames() -> None:
    frames = list(FrameReader().feed(STREAM))
    assert [frame.operation for frame in frames] == [
        "MSG", "MSG", "PING", "HMSG", "MSG", "MSG", "HMSG", "-ERR", "+OK", "MSG",
    ]  # fmt: skip
    assert all(isinstance(frame, Frame) for frame in frames)


def test_nats_py_still_splits_lines_at_white_space() -> None:
    """When this fails, nats-py has mended it: `shared.bus.parser` may go."""
    line = nats.protocol.parser.MSG_RE.match(b"MSG t.x\x0b3 7 4\r\n")
    assert line is not None and line[2] == b"3"


async def test_a_flood_of_one_client_delays_no_other(bus: Bus, nats_settings: NatsSettings) -> None:
    """The other client's message waits for one of the flood, not for all that came before."""
    handled: list[bytes] = []
    done, goes_on = asyncio.Event(), asyncio.Event()

    async def handler(message: IncomingMessage) -> None:
        await goes_on.wait()  # as a handler that is slower than the flood
        handled.append(message.payload)
        if message.payload == b"of ada":
            done.set()

    await bus.subscribe("mlx.infer.*.*", handler)
    await bus.flush()
    async with RawConnection(nats_settings) as eve:
        for _ in range(12_000):
            eve.send(publish(b"mlx.infer.eve.chat", b"junk"))
        eve.send(publish(b"mlx.infer.ada.chat", b"of ada"))
        await eve.round_trip()
        await bus.flush(timeout_s=30)
        goes_on.set()
        await asyncio.wait_for(done.wait(), 30)
    assert handled.index(b"of ada") <= 2
    assert bus.statistics.dropped["too_many"] >= 1_000


async def test_a_handler_may_end_its_own_subscription(bus: Bus) -> None:
    ended = asyncio.Event()

    async def handler(_: IncomingMessage) -> None:
        await subscription.unsubscribe()
        await asyncio.sleep(0)  # is not interrupted
        ended.set()

    subscription = await bus.subscribe("t.once", handler)
    await bus.publish("t.once", b"")
    await asyncio.wait_for(ended.wait(), 30)


async def test_what_waits_is_not_handled_after_the_subscription(bus: Bus) -> None:
    handled: list[bytes] = []
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def handler(message: IncomingMessage) -> None:
        handled.append(message.payload)
        began.set()
        await goes_on.wait()

    subscription = await bus.subscribe("t.many", handler)
    for number in range(3):
        await bus.publish("t.many", b"%d" % number)
    await asyncio.wait_for(began.wait(), 30)
    await subscription.unsubscribe()
    goes_on.set()
    await bus.flush()
    assert handled == [b"0"]


async def test_nothing_stays_of_a_subscription_that_ended(bus: Bus) -> None:
    for number in range(20):
        subscription = await bus.subscribe(f"t.{number}", _ignore)
        await subscription.unsubscribe()
        await bus.request_many(f"t.{number}", b"", wait_s=0.0)
    assert len(bus._client._receivers) == len(bus._attached)


async def _ignore(_: IncomingMessage) -> None:
    pass


async def test_a_flood_of_health_queries_stops_nothing_else(
    bus: Bus, nats_settings: NatsSettings
) -> None:
    """A query does not name its sender, so all queries share one bounded queue."""
    answers = 0
    of_ada = asyncio.Event()
    before_ada = 0

    def answer() -> bytes:
        nonlocal answers
        answers += 1
        time.sleep(0.001)  # as much as it takes to describe a large cluster
        return b"well"

    async def on_request(_: IncomingMessage) -> None:
        nonlocal before_ada
        before_ada = answers
        of_ada.set()

    endpoint = Endpoint("health", "t.health", "q", answer)
    await bus.serve(MicroService("t", "0.1.0", "for a test", {}, (endpoint,)))
    listener = await listen(bus, "mlx.request.*.*")
    await bus.subscribe("mlx.infer.*.*", on_request)
    await bus.flush()
    async with RawConnection(nats_settings) as eve:
        for _ in range(5_000):
            eve.send(publish(b"t.health", b"", reply=b"_INBOX.local.x"))
        eve.send(publish(b"mlx.infer.ada.chat", b""))
        eve.send(publish(b"mlx.request.ada.status", b"last"))
        await asyncio.wait_for(of_ada.wait(), 30)
        await listener.until_last()
    assert before_ada < 1_000
    assert bus.statistics.dropped["too_many"] > 0
