"""The HTTP response with an answer: one JSON body, or server-sent events.

A caller that disconnects cancels its request, streaming or not. The status of a stream is sent
with its first event: at the first output, or at the first keep-alive. A stream that fails sends
an error event and then closes the connection without the end of the body: it never looks complete.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import orjson
from starlette.types import Receive, Scope, Send

from controller.gateway.api_keys import ApiKey
from controller.gateway.endpoint import ShuttingDown
from controller.gateway.error_format import ApiErrorFormat, json_headers
from controller.gateway.inference_client import CallerRequest, InferenceClient, InferenceStream
from shared.client import Completion
from shared.errors import ClusterError
from shared.messages.stream import ChoiceOutput, Usage

_CHECKS_PER_KEEP_ALIVE = 4
"""How often a silent stream is checked within `keep_alive_s`, so a keep-alive is at most a quarter
of it late."""
_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class ResponseSerializer(Protocol):
    """How an API represents a complete answer."""

    async def whole(self, completion: Completion) -> dict[str, Any]:
        """Return the body. Responses are stored before this returns."""


class EventStreamSerializer(ResponseSerializer, Protocol):
    """How an API represents an answer, complete or streamed."""

    def opening(self, usage: Usage | None) -> bytes:
        """Return the events before the first output; `usage` as far as it is known."""

    def events(self, outputs: Sequence[ChoiceOutput]) -> bytes:
        """Return the events of new outputs."""

    def keep_alive(self) -> bytes:
        """Return what is sent while a stream that has begun is silent."""

    async def closing(self, usage: Usage) -> bytes:
        """Return the events after the last output. Responses are stored before this returns."""

    def failure(self, error: ClusterError) -> bytes:
        """Return the last event of a stream that failed."""


class StalledReader(ClusterError):
    """The caller has stopped reading; no error can be sent to it."""

    code = "slow_consumer"


class InferenceResponse:
    """An ASGI response.

    Args:
        whole: sends the request, and returns the body of the complete answer.
        events: the format of a stream; None to send a complete answer.
        keep_alive_s: a silent stream sends a comment after this time.
        send_timeout_s: maximum time that a caller may read nothing.
    """

    def __init__(
        self,
        inference: InferenceClient,
        key: ApiKey,
        call: CallerRequest,
        whole: Callable[[], Awaitable[dict[str, Any]]],
        dialect: ApiErrorFormat,
        *,
        events: EventStreamSerializer | None,
        keep_alive_s: float,
        send_timeout_s: float,
    ) -> None:
        self._inference = inference
        self._key = key
        self._call = call
        self._whole = whole
        self._dialect = dialect
        self._events = events
        self._keep_alive_s = keep_alive_s
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = ResponseWriter(send, scope["state"]["connection"], self._send_timeout_s)
        answer_task = asyncio.create_task(self._answer(writer))
        disconnect_task = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait((answer_task, disconnect_task), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _cancel(answer_task, disconnect_task)
            await self._send_failure(writer, ShuttingDown())
            raise
        await _cancel(answer_task, disconnect_task)
        if not answer_task.cancelled() and (error := answer_task.exception()) is not None:
            raise error

    async def _answer(self, writer: "ResponseWriter") -> None:
        try:
            if self._events is None:
                await writer.respond(200, orjson.dumps(await self._whole()), {})
                return
            async with self._inference.active(self._key, self._call) as active:
                await self._stream(writer, active, self._events)
        except StalledReader:
            writer.abort()
        except ClusterError as error:
            if writer.started:
                await self._send_failure(writer, error)
            else:
                response = self._dialect.http_error(error, self._call.request_id)
                await writer.respond(response.status, orjson.dumps(response.body), response.headers)

    async def _send_failure(self, writer: "ResponseWriter", error: ClusterError) -> None:
        """Send the error in a stream that has begun."""
        if writer.started and self._events is not None:
            with contextlib.suppress(StalledReader):
                await writer.write(self._events.failure(error))

    async def _stream(
        self, writer: "ResponseWriter", active: InferenceStream, events: EventStreamSerializer
    ) -> None:
        opened = False
        failed: list[ChoiceOutput] = []  # held back: if all choices fail, the response is an error
        check_every_s = self._keep_alive_s / _CHECKS_PER_KEEP_ALIVE
        async for outputs in active.updates(at_least_every_s=check_every_s):
            if not opened and all(output.error is not None for output in outputs):
                failed += outputs
                outputs = []
            if outputs:
                data = b"" if opened else events.opening(active.stream.usage)
                opened = True
                await writer.write(data + events.events([*failed, *outputs]))
                failed = []
            elif writer.idle_s >= self._keep_alive_s:
                comment = f": {_state(active)}\n\n".encode()
                await writer.write(comment + events.keep_alive() if opened else comment)
        if not opened:
            await writer.write(events.opening(active.usage))
        if failed:
            await writer.write(events.events(failed))
        await writer.write(await events.closing(active.usage))
        await writer.finish()


class HttpTransport(Protocol):
    """The connection of a response."""

    @property
    def blocked(self) -> bool:
        """Whether writes wait until the caller has read more."""

    def abort(self) -> None:
        """Close the connection now and drop what has not been sent."""


class ResponseWriter:
    """The sending side of a response."""

    def __init__(self, send: Send, connection: HttpTransport, timeout_s: float) -> None:
        self._send = send
        self._connection = connection
        self._timeout_s = timeout_s
        self._wrote_at = time.monotonic()
        self.started = False

    @property
    def idle_s(self) -> float:
        return time.monotonic() - self._wrote_at

    def abort(self) -> None:
        """Close the connection now and drop what has not been sent."""
        self._connection.abort()

    async def respond(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """Send a complete response."""
        self.started = True
        raw = json_headers(body, headers)
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
        await self._send_in_time({"type": "http.response.body", "body": body})

    async def write(self, data: bytes) -> None:
        """Send one or more events.

        Raises:
            StalledReader: the caller read nothing for too long.
        """
        if not self.started:
            self.started = True
            start = {"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS}
            await self._send(start)
        await self._send_in_time({"type": "http.response.body", "body": data, "more_body": True})
        self._wrote_at = time.monotonic()

    async def finish(self) -> None:
        """End the body of a stream that succeeded."""
        await self._send_in_time({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_in_time(self, message: dict[str, Any]) -> None:
        if not self._connection.blocked:  # nearly always; a timeout costs more than the send
            await self._send(message)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            raise StalledReader(f"the caller read nothing for {self._timeout_s:g} s") from None


async def _cancel(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the caller has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _state(active: InferenceStream) -> str:
    stream = active.stream
    progress = f" {stream.progress:.0%}" if stream.progress is not None else ""
    return f"{stream.status or 'waiting'}{progress}"
