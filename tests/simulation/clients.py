"""The clients of a simulated cluster: some with the client library, some that only publish."""

import time
from collections.abc import Mapping
from typing import Any

from shared.bus import IncomingMessage
from shared.client import Cluster
from shared.client.assembler import StreamAssembler
from shared.errors import ClusterError, StreamFailed
from shared.ids import ClientName, RequestId
from shared.messages.dispatch import choice_seed, default_seed
from shared.messages.request import InferenceRequest
from shared.messages.stream import (
    ChunkMessage,
    DoneMessage,
    FailedMessage,
    StatusMessage,
    StreamMessage,
)
from shared.messages.stream import decode as decode_stream
from tests.simulation.engine import answer_of

CLIENT = ClientName("local")


class Listener:
    """What came of one request to one listener.

    Attributes:
        end: `done`, or the code of the error; None before.
        wrong: what of the answer is not as it must be.
        owed: it must hear the end.
        hurried: its time may be over before it is served.
        began_at, ended_at: its first token, and its end.
        heard_at: when something came, or its request was published.
    """

    def __init__(self, body: Mapping[str, Any], name: str) -> None:
        self.name = name
        self.body = dict(body)
        self.request_id: str | None = body.get("request_id")
        self.hurried = "timeout_ms" in body
        self.asked_at = self.heard_at = time.monotonic()
        self.end: str | None = None
        self.owed = True
        self.wrong: list[str] = []
        self.began_at: float | None = None
        self.ended_at: float | None = None
        self.tokens: dict[int, list[int]] = {}
        self.finish_reasons: dict[int, str] = {}
        self.log: list[str] = []

    def note_output(self, choice: int, token_ids: list[int], finish_reason: str | None) -> None:
        """New tokens of one choice."""
        if token_ids and self.began_at is None:
            self.began_at = time.monotonic()
        self.tokens.setdefault(choice, []).extend(token_ids)
        if finish_reason is not None:
            self.finish_reasons[choice] = finish_reason

    def note_end(self, end: str) -> None:
        if self.end is None:
            self.end, self.ended_at = end, time.monotonic()
            self._check()

    def _check(self) -> None:
        """The answer is what any worker generates alone."""
        if self.request_id is None:
            return
        choices = InferenceRequest.model_validate(self.body).choices
        seed = default_seed(CLIENT, RequestId(self.request_id))
        for choice in range(choices):
            got = self.tokens.get(choice, [])
            whole = answer_of(choice_seed(seed, choice))
            if got != whole[: len(got)]:
                self.wrong.append(f"choice {choice} is {got} instead of {whole}")
            reason = self.finish_reasons.get(choice)
            if self.end == "done" and reason is None:
                self.wrong.append(f"choice {choice} has no end")

    def __repr__(self) -> str:
        return f"<{self.name} of {self.request_id}: {self.end}, {self.tokens}, {self.log}>"


async def stream(cluster: Cluster, listener: Listener) -> None:
    """Ask with the client library, and read all of it."""
    body = {name: value for name, value in listener.body.items() if name != "messages"}
    one = cluster.stream(listener.body.get("messages"), **body)
    listener.request_id = one.request_id
    try:
        async for output in one:
            listener.heard_at = time.monotonic()
            listener.note_output(output.choice, output.token_ids, output.finish_reason)
        listener.note_end("done")
    except ClusterError as error:
        listener.log.append(error.message)
        listener.note_end(error.code)


class PlainListener(Listener):
    """One inbox of a client that has no library."""

    def __init__(self, body: Mapping[str, Any], inbox: str) -> None:
        super().__init__(body, inbox)
        self.inbox = inbox
        self.terminals: set[tuple[int, str | None]] = set()
        choices = InferenceRequest.model_validate(body).choices
        self._assembler = StreamAssembler(RequestId(self.request_id or ""), choices=choices)

    def forget_attempts(self) -> None:
        """It publishes again after a silence."""
        self._assembler.reset_attempts()

    async def take(self, message: IncomingMessage) -> None:
        self.heard_at = time.monotonic()
        if message.no_responders:
            self.owed = "request_id" in self.body  # it publishes again
            return
        self.owed = True
        for one in decode_stream(message.payload):
            self._take(one)

    def _take(self, message: StreamMessage) -> None:
        self.log.append(_short(message))
        if isinstance(message, DoneMessage | FailedMessage):
            self.terminals.add((message.attempt, message.worker))
        if self.request_id is None and message.request_id is not None:
            self.request_id = self._assembler.request_id = message.request_id
        try:
            outputs = self._assembler.take(message)
        except StreamFailed as failure:
            self.note_end(failure.code)
            return
        for output in outputs:
            self.note_output(output.choice, output.token_ids, output.finish_reason)
        if self._assembler.done:
            self.note_end("done")


def _short(message: StreamMessage) -> str:
    who = f"{message.attempt}@{message.worker}"
    match message:
        case StatusMessage():
            return f"{message.status} {who}" + (f" ({message.reason})" if message.reason else "")
        case ChunkMessage():
            return f"[{message.output.index}] {who}"
        case DoneMessage():
            return f"done {who}"
        case FailedMessage():
            return f"{message.error.code} {who}: {message.error.message}"
