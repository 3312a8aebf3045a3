"""The response of `GET /cluster/events`: server-sent events of the views that a viewer asks for."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import orjson
from starlette.types import Receive, Scope, Send

from controller.gateway.live.feed import LiveFeed
from controller.gateway.live.rights import VIEWS, Caller
from controller.gateway.live.table import event
from controller.gateway.live.viewer_limits import ViewerLimits
from controller.gateway.streaming_response import ResponseWriter, StalledReader, wait_for_disconnect
from shared.errors import ClusterError, InvalidRequest
from shared.version import VERSION

KEEP_ALIVE_S = 10.0
_INTERVAL_S = 1.0
"""Between two events of a view, at least."""


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
    """An ASGI response that ends when the viewer disconnects, stops reading or loses its rights, or
    the gateway drains.

    Args:
        views: allowed for the caller.
        limits: count the viewer; they were checked.
        is_allowed: whether the caller still has these rights; else the stream ends.
        send_timeout_s: maximum time that a viewer may read nothing.
    """

    def __init__(
        self,
        feed: LiveFeed,
        caller: Caller,
        views: Sequence[str],
        limits: ViewerLimits,
        *,
        is_allowed: Callable[[], bool],
        send_timeout_s: float,
    ) -> None:
        self._feed = feed
        self._limits = limits
        self._caller = caller
        self._views = views
        self._client = caller.key.client if caller.rights == "own" else None
        self._is_allowed = is_allowed
        self._send_timeout_s = send_timeout_s
        self._versions = dict.fromkeys(views, 0)
        self._sent_at = dict.fromkeys(views, 0.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = ResponseWriter(send, scope["state"]["connection"], self._send_timeout_s)
        if scope["method"] == "HEAD":  # has no body whose sending would fail when the viewer leaves
            await writer.write(b"")
            await writer.finish()
            return
        with self._limits.counted(self._caller):
            await self._watch(writer, receive)

    async def _watch(self, writer: ResponseWriter, receive: Receive) -> None:
        self._feed.watch(self._views, self._client)
        sending = asyncio.create_task(self._send_events(writer))
        tasks = (sending, asyncio.create_task(wait_for_disconnect(receive)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._feed.unwatch(self._views, self._client)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send_events(self, writer: ResponseWriter) -> None:
        try:
            await writer.write(event("session", orjson.dumps(self._session())))
            while not self._feed.ended and self._is_allowed():
                if events := self._new_events():
                    await writer.write(events)
                elif writer.idle_s >= KEEP_ALIVE_S:
                    await writer.write(b": keep-alive\n\n")
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
        await self._until(self._has_news, KEEP_ALIVE_S - writer.idle_s)
        await self._until(self._has_due_news, self._due_in_s())

    async def _until(self, condition: Callable[[], bool], limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, limit_s)):
                await self._feed.changed.wait_until(condition)

    def _has_news(self) -> bool:
        return self._feed.ended or any(self._news(view)[0] for view in self._views)

    def _has_due_news(self) -> bool:
        due = filter(self._may_send, self._views)
        return self._feed.ended or any(self._news(view)[0] for view in due)

    def _due_in_s(self) -> float:
        """Return when the first view that has changed may be sent again; 0 if none has."""
        sent_at = [self._sent_at[view] for view in self._views if self._news(view)[0]]
        return min(sent_at) + _INTERVAL_S - time.monotonic() if sent_at else 0.0

    def _may_send(self, view: str) -> bool:
        return time.monotonic() - self._sent_at[view] >= _INTERVAL_S

    def _news(self, view: str) -> tuple[bytes, int]:
        return self._feed.since(view, self._versions[view], self._client)

    def _new_events(self) -> bytes:
        events = []
        for view in filter(self._may_send, self._views):
            body, version = self._news(view)
            if body:
                self._versions[view], self._sent_at[view] = version, time.monotonic()
                events.append(body)
        return b"".join(events)
