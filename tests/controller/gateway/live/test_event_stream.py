"""The response with the events, in this process: its rhythm and its end."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from controller.gateway.api_keys import ANONYMOUS
from controller.gateway.health_poller import HealthPoller
from controller.gateway.live import event_stream
from controller.gateway.live.changes import Change
from controller.gateway.live.event_stream import EventStreamResponse
from controller.gateway.live.feed import LiveFeed
from controller.gateway.live.rights import Caller
from controller.gateway.live.viewer_limits import ViewerLimits
from tests.controller.gateway.live.event_text import parsed

pytestmark = pytest.mark.anyio

_CLUSTER: Any = None  # the feed does not run, so nobody asks it
_WAIT_S = 10


class _Connection:
    """The other side of a response."""

    def __init__(self, feed: LiveFeed, *views: str) -> None:
        self.sent = b""
        self.ended = False
        self.aborted = False
        self.reads = asyncio.Event()
        self.reads.set()
        self.left = asyncio.Event()
        self.blocked = False
        self._changed = asyncio.Event()
        caller = Caller(ANONYMOUS, "read")
        self.allowed = True
        response = EventStreamResponse(
            feed,
            caller,
            views,
            ViewerLimits(),
            is_allowed=lambda: self.allowed,
            send_timeout_s=0.05,
        )
        scope: Any = {"type": "http", "method": "GET", "state": {"connection": self}}
        self.task = asyncio.create_task(response(scope, self._receive, self._send))

    def abort(self) -> None:
        self.aborted = True

    async def until_sent(self, text: bytes, count: int = 1) -> None:
        async with asyncio.timeout(_WAIT_S):
            while self.sent.count(text) < count:
                self._changed.clear()
                await self._changed.wait()

    async def _receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.body":
            self.sent += message["body"]
            self.ended = not message["more_body"]
            self._changed.set()


@pytest.fixture
def feed() -> LiveFeed:
    return LiveFeed(_CLUSTER, HealthPoller(_CLUSTER))


def _show(feed: LiveFeed, number: int) -> None:
    feed.sessions.update({"s": {"n": number}})
    feed.changed.notify()


async def _ended(connection: _Connection) -> None:
    await asyncio.wait_for(connection.task, _WAIT_S)


async def test_silence_is_filled_with_comments(
    feed: LiveFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_S", 0.05)
    connection = _Connection(feed, "sessions")
    await connection.until_sent(b": keep-alive\n\n", 3)
    assert [name for name, _ in parsed(connection.sent)] == ["session"]
    feed.end()
    await _ended(connection)


async def test_changes_within_a_second_are_sent_as_one_event_when_it_is_over(
    feed: LiveFeed,
) -> None:
    loop = asyncio.get_running_loop()
    _show(feed, 1)
    connection = _Connection(feed, "sessions")
    await connection.until_sent(b'"n":1')
    first = loop.time()
    for number in (2, 3, 4):
        _show(feed, number)
        await asyncio.sleep(0.02)
    await connection.until_sent(b'"n":4')  # nobody notifies at that time
    assert loop.time() - first >= event_stream._INTERVAL_S - 0.05
    assert b'"n":2' not in connection.sent and b'"n":3' not in connection.sent
    feed.end()
    await _ended(connection)


async def test_one_view_does_not_wait_for_another(feed: LiveFeed) -> None:
    _show(feed, 1)
    connection = _Connection(feed, "sessions", "rollout")
    await connection.until_sent(b'"n":1')
    _show(feed, 2)
    feed.rollout.update({"stable": 7})
    feed.changed.notify()
    await connection.until_sent(b'"stable":7')
    assert b'"n":2' not in connection.sent
    feed.end()
    await _ended(connection)


async def test_the_body_ends_when_the_feed_ends(feed: LiveFeed) -> None:
    connection = _Connection(feed, "sessions")
    await connection.until_sent(b"event: session")
    feed.end()
    await _ended(connection)
    assert connection.ended and not connection.aborted and feed.viewers == 0


async def test_a_viewer_that_lost_its_rights_gets_nothing_more(feed: LiveFeed) -> None:
    connection = _Connection(feed, "sessions")
    await connection.until_sent(b"event: session")
    connection.allowed = False
    _show(feed, 1)
    await _ended(connection)
    assert connection.ended and b"event: sessions" not in connection.sent


async def test_a_viewer_that_leaves_is_forgotten(feed: LiveFeed) -> None:
    connection = _Connection(feed, "requests")
    await connection.until_sent(b"event: session")
    assert feed.viewers == 1
    connection.left.set()
    await _ended(connection)
    assert feed.viewers == 0 and not connection.ended


async def test_a_viewer_that_reads_nothing_is_cut_off(feed: LiveFeed) -> None:
    connection = _Connection(feed, "sessions")
    await connection.until_sent(b"event: session")
    connection.blocked = True
    connection.reads.clear()
    _show(feed, 1)
    await _ended(connection)
    assert connection.aborted and not connection.ended and feed.viewers == 0


async def test_a_fault_of_the_feed_is_not_lost(
    feed: LiveFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> tuple[bytes, int]:
        raise ZeroDivisionError

    monkeypatch.setattr(feed, "since", broken)
    connection = _Connection(feed, "sessions")
    with pytest.raises(ZeroDivisionError):
        await _ended(connection)
    assert feed.viewers == 0


async def test_an_empty_log_is_no_event(feed: LiveFeed) -> None:
    assert feed.since("log", 0, None) == (b"", 0)


async def test_the_log_has_the_last_records_and_later_only_new_ones(feed: LiveFeed) -> None:
    feed.log.add(Change("info", "worker", f"n{number}") for number in range(250))
    ((_, first),) = parsed(feed.since("log", 0, None)[0])
    assert [record["text"] for record in first["records"]] == [f"n{n}" for n in range(50, 250)]
    assert first["records"][0].keys() == {"time", "level", "kind", "text", "worker"}
    feed.log.add([Change("error", "model", "last")])
    ((_, later),) = parsed(feed.since("log", 250, None)[0])
    assert [record["text"] for record in later["records"]] == ["last"]
    assert feed.since("log", feed.log.version, None)[0] == b""
