"""The bad line of the tests itself: it must be exact, or it judges nothing."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.nats_frames import Frame, FrameReader, ProtocolBroken, at_address
from tests.nats_proxy import Counters, Cut, Disturbance, Disturber, NatsProxy
from tests.processes import RunningNats, wait_for

pytestmark = pytest.mark.anyio

SECURED = False  # the line has to see the messages that it loses
LIMIT_S = 20

_token = st.text("abcXYZ019_-$", min_size=1, max_size=6)
_subject = st.lists(_token, min_size=1, max_size=3).map(".".join)
_payload = st.binary(max_size=40) | st.just(b"MSG a 1 2\r\nhi\r\n") | st.just(b"\r\n\r\n")


@st.composite
def _frames(draw: st.DrawFn) -> Frame:
    kind = draw(st.sampled_from(["MSG", "HMSG", "INFO", "PING", "PONG", "+OK", "-ERR"]))
    if kind == "INFO":
        return Frame(kind, b'INFO {"port":4222, "connect_urls":["a:1"]} \r\n')
    if kind == "-ERR":
        return Frame(kind, b"-ERR 'Unknown Protocol Operation'\r\n")
    if kind not in ("MSG", "HMSG"):
        return Frame(kind, kind.encode() + b"\r\n")
    subject, payload = draw(_subject), draw(_payload)
    reply = draw(st.none() | _subject)
    headers = b"NATS/1.0 503\r\nX: y\r\n\r\n" if kind == "HMSG" else b""
    lengths = [len(headers)] if kind == "HMSG" else []
    words = [kind, subject, "7", *([reply] if reply else []), *lengths, len(headers + payload)]
    line = " ".join(map(str, words)).encode()
    return Frame(kind, line + b"\r\n" + headers + payload + b"\r\n", subject)


@given(st.lists(_frames(), max_size=8), st.data())
def test_frames_are_found_however_they_are_cut_into_segments(
    frames: list[Frame], data: st.DataObject
) -> None:
    sent = b"".join(frame.raw for frame in frames)
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=12).map(sorted))
    reader = FrameReader()
    found: list[Frame] = []
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        found += reader.feed(sent[start:end])
    assert found == frames
    assert reader.unfinished_bytes == 0


@given(st.lists(_frames(), min_size=1, max_size=4))
def test_frames_are_found_byte_by_byte_and_none_too_early(frames: list[Frame]) -> None:
    reader = FrameReader()
    for frame in frames:
        for position, byte in enumerate(frame.raw):
            expected = [frame] if position == len(frame.raw) - 1 else []
            assert reader.feed(bytes([byte])) == expected


@pytest.mark.parametrize(
    "sent",
    [
        b"HELLO\r\n",
        b"\r\n",
        b"MSG a 1\r\n",
        b"MSG a 1 x\r\n",
        b"MSG a 1 -2\r\n\r\n\r\n",
        b"MSG a 1 2\r\nlonger\r\n",
    ],
)
def test_what_no_server_sends_is_refused(sent: bytes) -> None:
    with pytest.raises(ProtocolBroken):
        FrameReader().feed(sent)


def test_an_info_names_the_proxy_and_no_other_server() -> None:
    (info,) = FrameReader().feed(
        b'INFO {"host":"0.0.0.0","port":4222,"connect_urls":["10.0.0.1:4222"],"headers":true} \r\n'
    )
    assert at_address(info, "127.0.0.1", 99).raw == (
        b'INFO {"host": "127.0.0.1", "port": 99, "headers": true} \r\n'
    )


def message(number: int, subject: str = "_INBOX.a") -> Frame:
    return Frame("MSG", b"%d " % number, subject)


def pass_all(plan: Disturbance, frames: list[Frame], *, seed: int = 1) -> tuple[bytes, Counters]:
    counters = Counters()
    held: list[Frame] = []
    disturber = Disturber(plan, random.Random(seed), counters, held.append)
    sent = [part for frame in frames for part in disturber.pass_on(frame)]
    sent += [part for frame in held for part in disturber.release(frame)]
    return b"".join(sent), counters


def test_without_a_plan_everything_passes_in_order() -> None:
    frames = [message(n) for n in range(20)]
    sent, counters = pass_all(Disturbance(), frames)
    assert sent == b"".join(frame.raw for frame in frames)
    assert counters == Counters(messages=20)


def test_only_messages_of_the_chosen_subjects_are_touched() -> None:
    untouched = [Frame("PING", b"PING\r\n"), message(1, "mlx.event"), message(2, "_INBOXES.a")]
    sent, counters = pass_all(Disturbance(drop=1), [*untouched, message(3)])
    assert sent == b"".join(frame.raw for frame in untouched)
    assert counters.dropped == 1


@given(st.integers(0, 1000), st.integers(1, 60))
def test_nothing_but_the_dropped_is_missing_and_nothing_but_the_doubled_comes_twice(
    seed: int, count: int
) -> None:
    plan = Disturbance(drop=0.2, double=0.2, reorder=0.2)
    frames = [message(n, f"_INBOX.{n % 3}") for n in range(count)]
    sent, counters = pass_all(plan, frames, seed=seed)
    numbers = [int(word) for word in sent.split()]
    assert count - len(set(numbers)) == counters.dropped
    assert len(numbers) - len(set(numbers)) == counters.doubled
    assert counters.messages == count


def test_a_held_message_is_overtaken_by_one_to_three_of_its_own_subject() -> None:
    for seed in range(30):
        first_only = Disturbance(reorder=0.3)
        frames = [message(n) for n in range(30)]
        sent, counters = pass_all(first_only, frames, seed=seed)
        numbers = [int(word) for word in sent.split()]
        late = [n for place, n in enumerate(numbers) if any(m > n for m in numbers[:place])]
        assert len(late) == counters.reordered
        assert sorted(numbers) == list(range(30))
        for n in late:
            assert 1 <= sum(m > n for m in numbers[: numbers.index(n)]) <= 3


@asynccontextmanager
async def connected(proxy: NatsProxy) -> AsyncIterator[Client]:
    async def ignore(_: Exception) -> None:
        pass

    client = await nats.connect(
        proxy.url, reconnect_time_wait=0.05, max_reconnect_attempts=-1, error_cb=ignore
    )
    yield client
    await client.close()


async def flush(client: Client) -> None:
    """Twice: the first PING overtakes what nats-py has buffered."""
    await client.flush()
    await client.flush()


class Received:
    """The numbers that came on a subject, and a way to wait for one."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._came = asyncio.Condition()

    async def take(self, msg: Msg) -> None:
        async with self._came:
            self.numbers.append(int(msg.data))
            self._came.notify_all()

    async def until(self, number: int) -> None:
        async with asyncio.timeout(LIMIT_S), self._came:
            await self._came.wait_for(lambda: number in self.numbers)


@pytest.fixture
async def proxy(nats_server: RunningNats) -> AsyncIterator[NatsProxy]:
    async with NatsProxy(nats_server.url, seed=3) as running:
        yield running


async def test_a_client_is_served_through_the_proxy_and_knows_no_other_server(
    proxy: NatsProxy,
) -> None:
    async with connected(proxy) as client:
        received = Received()
        await client.subscribe("t.big", cb=received.take)
        await client.publish("t.big", b"1".rjust(200_000))
        await received.until(1)
        assert {server.uri.netloc for server in client._server_pool} == {
            proxy.url.removeprefix("nats://")
        }
        assert proxy.connections == 1
    assert proxy.counters.messages == 0


async def test_faults_reach_the_client_and_are_counted(proxy: NatsProxy) -> None:
    proxy.disturbance = Disturbance(drop=0.1, double=0.1, reorder=0.1)
    async with connected(proxy) as client:
        received = Received()
        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=received.take)
        for number in range(500):
            await client.publish(inbox, str(number).encode())
        await flush(client)
        proxy.disturbance = Disturbance()
        await client.publish(inbox, b"500")
        await received.until(500)
    counters = proxy.counters
    assert counters.messages == 501
    assert min(counters.dropped, counters.doubled, counters.reordered) > 20
    assert len(received.numbers) == 501 - counters.dropped + counters.doubled
    assert received.numbers != sorted(received.numbers)


@pytest.mark.parametrize("how", ["reset", "end"])
async def test_a_cut_client_comes_back_only_when_it_is_no_longer_refused(
    proxy: NatsProxy, how: Cut
) -> None:
    async with connected(proxy) as client:
        received = Received()
        await client.subscribe("t.cut", cb=received.take)
        await flush(client)
        proxy.refusing = True
        await proxy.cut(how)
        await asyncio.to_thread(wait_for, lambda: proxy.counters.refused >= 2, "two refusals")
        assert proxy.connections == 0 and not client.is_connected
        await client.publish("t.cut", b"7")
        proxy.refusing = False
        await received.until(7)
        assert proxy.counters.cut == 1


async def test_a_stalled_line_delivers_everything_once_it_flows_again(proxy: NatsProxy) -> None:
    async with connected(proxy) as client:
        received = Received()
        await client.subscribe("t.stall", cb=received.take)
        await flush(client)
        proxy.stall()
        for number in range(50):
            await client.publish("t.stall", str(number).encode())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(received.until(0), 0.5)
        assert received.numbers == [] and client.is_connected
        proxy.resume()
        await received.until(49)
        assert received.numbers == list(range(50))


async def test_a_stalled_line_can_be_cut(proxy: NatsProxy) -> None:
    async with connected(proxy) as client:
        await client.flush()
        proxy.stall()
        await client.publish("t.x", b"")
        await asyncio.wait_for(proxy.cut(), LIMIT_S)
        proxy.resume()
