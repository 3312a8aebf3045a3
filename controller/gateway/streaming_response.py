"""An answer as HTTP: whole as JSON, or as server-sent events while it comes.

Whoever hangs up ends the request, streaming or not. The status is decided when the first
output comes, or when a caller would otherwise hear nothing for too long. A stream that ends
badly says so in an event and then breaks off: it never looks whole.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, Protocol

import orjson
from starlette.types import Receive, Scope, Send

from controller.gateway.api_keys import ApiKey
from controller.gateway.dialect import ApiDialect, json_headers
from controller.gateway.endpoint import ShuttingDown
from controller.gateway.inference_service import ActiveCompletion, InferenceCall, InferenceService
from shared.client import Completion
from shared.errors import ClusterError
from shared.messages.stream import ChoiceOutput, Usage

_LOOKS = 4
"""So often within its time a silent stream is looked at: it stays silent for a quarter longer."""
_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class ResponseFormat(Protocol):
    """How an API writes a whole answer."""

    async def whole(self, completion: Completion) -> dict[str, Any]:
        """The body. It may be stored before."""


class EventStreamFormat(ResponseFormat, Protocol):
    """How an API writes an answer, whole or while it comes."""

    def opening(self, usage: Usage | None) -> bytes:
        """The events before the first output; `usage` as far as it is known."""

    def events(self, outputs: Sequence[ChoiceOutput]) -> bytes:
        """The events of what is new."""

    def keep_alive(self) -> bytes:
        """What is sent while a stream that has begun is silent."""

    async def closing(self, usage: Usage) -> bytes:
        """The events after the last output. The answer may be stored before."""

    def failure(self, error: ClusterError) -> bytes:
        """The event with which a stream ends badly."""


class StalledReader(ClusterError):
    """The caller has stopped to take what is sent; nothing more can be said to it."""

    code = "slow_consumer"


class StreamingAnswer:
    """An ASGI response.

    Args:
        events: how it is written while it comes; None to send it whole.
        keep_alive_s: after so long without a word a comment is sent.
        send_timeout_s: how long a caller may read nothing.
    """

    def __init__(
        self,
        inference: InferenceService,
        key: ApiKey,
        question: InferenceCall,
        form: ResponseFormat,
        dialect: ApiDialect,
        *,
        events: EventStreamFormat | None,
        keep_alive_s: float,
        send_timeout_s: float,
    ) -> None:
        self._inference = inference
        self._key = key
        self._question = question
        self._form = form
        self._dialect = dialect
        self._events = events
        self._keep_alive_s = keep_alive_s
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = Writer(send, scope["state"]["connection"], self._send_timeout_s)
        streaming_answer = asyncio.create_task(self._answer(writer))
        watching = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((streaming_answer, watching), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _end(streaming_answer, watching)
            await self._break_off(writer, ShuttingDown())
            raise
        await _end(streaming_answer, watching)
        if not streaming_answer.cancelled() and (error := streaming_answer.exception()) is not None:
            raise error

    async def _answer(self, writer: "Writer") -> None:
        try:
            async with self._inference.active(self._key, self._question) as active:
                if self._events is not None:
                    await self._stream(writer, active, self._events)
                else:
                    body = orjson.dumps(await self._form.whole(await active.collect()))
                    await writer.respond(200, body, {})
        except StalledReader:
            writer.abort()
        except ClusterError as error:
            if writer.started:
                await self._break_off(writer, error)
            else:
                refusal = self._dialect.refusal(error, self._question.request_id)
                await writer.respond(refusal.status, orjson.dumps(refusal.body), refusal.headers)

    async def _break_off(self, writer: "Writer", error: ClusterError) -> None:
        """Say in a stream that has begun why it ends here."""
        if writer.started and self._events is not None:
            with contextlib.suppress(StalledReader):
                await writer.write(self._events.failure(error))

    async def _stream(
        self, writer: "Writer", active: ActiveCompletion, form: EventStreamFormat
    ) -> None:
        opened = False
        failed: list[ChoiceOutput] = []  # while all choices may: then it is no stream
        looks_every_s = self._keep_alive_s / _LOOKS
        async for outputs in active.updates(at_least_every_s=looks_every_s):
            if not opened and all(output.error is not None for output in outputs):
                failed += outputs
                outputs = []
            if outputs:
                data = b"" if opened else form.opening(active.stream.usage)
                opened = True
                await writer.write(data + form.events([*failed, *outputs]))
                failed = []
            elif writer.silent_s >= self._keep_alive_s:
                comment = f": {_state(active)}\n\n".encode()
                await writer.write(comment + form.keep_alive() if opened else comment)
        if not opened:
            await writer.write(form.opening(active.usage))
        if failed:
            await writer.write(form.events(failed))
        await writer.write(await form.closing(active.usage))
        await writer.finish()


class Connection(Protocol):
    """What is underneath."""

    @property
    def blocked(self) -> bool:
        """Whether sending waits for the caller to read."""

    def abort(self) -> None:
        """Close now; what was not sent yet is lost."""


class Writer:
    """The sending side of a response."""

    def __init__(self, send: Send, connection: Connection, timeout_s: float) -> None:
        self._send = send
        self._connection = connection
        self._timeout_s = timeout_s
        self._wrote_at = time.monotonic()
        self.started = False

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._wrote_at

    def abort(self) -> None:
        """Drop the connection with all that was not sent yet."""
        self._connection.abort()

    async def respond(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """A whole response."""
        self.started = True
        raw = json_headers(body, headers)
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
        await self._pass({"type": "http.response.body", "body": body})

    async def write(self, data: bytes) -> None:
        """One or more events.

        Raises:
            StalledReader: for too long.
        """
        if not self.started:
            self.started = True
            start = {"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS}
            await self._send(start)
        await self._pass({"type": "http.response.body", "body": data, "more_body": True})
        self._wrote_at = time.monotonic()

    async def finish(self) -> None:
        """The good end; without it the connection breaks off."""
        await self._pass({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass(self, message: dict[str, Any]) -> None:
        if not self._connection.blocked:  # nearly always, and a time limit costs more than to send
            await self._send(message)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            raise StalledReader(f"nothing was read for {self._timeout_s:g} s") from None


async def _end(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _state(active: ActiveCompletion) -> str:
    stream = active.stream
    progress = f" {stream.progress:.0%}" if stream.progress is not None else ""
    return f"{stream.status or 'waiting'}{progress}"
