"""The response of `GET /cluster/events`: server-sent events of the views that a viewer asks for."""

import asyncio
import contextlib
import time
from collections.abc import Sequence

import orjson
from starlette.types import Receive, Scope, Send

from controller.gateway.live.feed import LiveFeed
from controller.gateway.live.rights import VIEWS, Caller
from controller.gateway.live.table import event
from controller.gateway.streaming_response import ResponseWriter, StalledReader, wait_for_disconnect
from shared.errors import ClusterError, InvalidRequest
from shared.version import VERSION

KEEP_ALIVE_S = 10.0
_INTERVAL_S = 0.9
"""Between two events of a view: a little less than the feed polls."""
MAX_VIEWERS = 100


def requested_views(query: str | None, caller: Caller) -> tuple[str, ...]:
    """Return the views that `?views=` names; without it, all that the caller may see.

    Raises:
        InvalidRequest: there is no such view.
        ClusterError: `not_allowed`: the caller may not see a view.
    """
    if query is None:
        return caller.views
    names = tuple(dict.fromkeys(name for name in query.split(",") if name))
    if unknown := [name for name in names if name not in VIEWS]:
        raise InvalidRequest(
            f"views: there is no {unknown[0][:50]!r}; there are: {', '.join(VIEWS)}", param="views"
        )
    if hidden := [name for name in names if name not in caller.views]:
        raise ClusterError(
            f"the view {hidden[0]!r} needs a key with `admin: true`", code="not_allowed"
        )
    return names


class EventStreamResponse:
    """An ASGI response that ends when the viewer disconnects, stops reading, or the gateway drains.

    Args:
        views: allowed for the caller.
        send_timeout_s: maximum time that a viewer may read nothing.
    """

    def __init__(
        self, feed: LiveFeed, caller: Caller, views: Sequence[str], *, send_timeout_s: float
    ) -> None:
        self._feed = feed
        self._caller = caller
        self._views = views
        self._client = caller.key.client if caller.rights == "own" else None
        self._send_timeout_s = send_timeout_s
        self._versions = dict.fromkeys(views, 0)
        self._sent_at = dict.fromkeys(views, 0.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = ResponseWriter(send, scope["state"]["connection"], self._send_timeout_s)
        self._feed.watch(self._views, self._client)
        tasks = (
            asyncio.create_task(self._send_events(writer)),
            asyncio.create_task(wait_for_disconnect(receive)),
        )
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._feed.unwatch(self._views, self._client)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _send_events(self, writer: ResponseWriter) -> None:
        try:
            await writer.write(event("session", orjson.dumps(self._session())))
            while not self._feed.ended:
                await writer.write(self._new_events() or b": keep-alive\n\n")
                await self._wait_for_news(writer)
            await writer.finish()
        except StalledReader:
            writer.abort()

    def _session(self) -> dict[str, object]:
        return {
            "rights": self._caller.rights,
            "client": self._caller.key.client,
            "version": VERSION,
            "views": self._caller.views,
        }

    async def _wait_for_news(self, writer: ResponseWriter) -> None:
        """Return when a view that may be sent again has changed, or a keep-alive is due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, KEEP_ALIVE_S - writer.idle_s)):
                await self._feed.changed.wait_until(self._has_news)

    def _has_news(self) -> bool:
        if self._feed.ended:
            return True
        return any(
            self._feed.since(view, self._versions[view], self._client)[0] for view in self._due
        )

    @property
    def _due(self) -> list[str]:
        now = time.monotonic()
        return [view for view in self._views if now - self._sent_at[view] >= _INTERVAL_S]

    def _new_events(self) -> bytes:
        events = []
        for view in self._due:
            body, version = self._feed.since(view, self._versions[view], self._client)
            if body:
                self._versions[view], self._sent_at[view] = version, time.monotonic()
                events.append(body)
        return b"".join(events)
