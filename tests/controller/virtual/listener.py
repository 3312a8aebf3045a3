"""What a client hears of one request, as `shared.client` makes sense of it."""

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from shared.bus import Message
from shared.client.assembler import Assembler
from shared.errors import StreamFailed
from shared.ids import RequestId
from shared.messages.request import InferenceRequest
from shared.messages.stream import Chunk, Done, Failed, Status, StreamMessage
from shared.messages.stream import decode as decode_stream


class Listener:
    """One inbox.

    Attributes:
        messages: all that came.
        end: `done`, or the code of the error; None before.
        generations: of each choice, whose tokens it took, each named once.
        moves: how often it was told that another worker goes on.
        unannounced: tokens of another generation came without that.
        heard_at: when something came, or its request was published.
        owed: its request was published and, as far as it knows, taken: it must hear the end.
        hurried: its time may be over before it is served.
    """

    def __init__(self, inbox: str, body: Mapping[str, Any]) -> None:
        """`body` is what was published, or will be."""
        self.inbox = inbox
        self.request_id = body.get("request_id")
        self.anonymous = self.request_id is None
        self.hurried = "timeout_ms" in body
        self.messages: list[StreamMessage] = []
        self.end: str | None = None
        self.generations: defaultdict[int, list[str]] = defaultdict(list)
        self.owed = False
        self.heard_at = 0.0
        self.moves = 0
        self.unannounced = False
        choices = InferenceRequest.model_validate(body).choices
        self._assembler = Assembler(RequestId(self.request_id or ""), choices=choices)

    async def take(self, message: Message) -> None:
        self.heard_at = time.monotonic()
        if message.no_responders:
            self.owed = False
            return
        for one in decode_stream(message.payload):
            self._take(one)

    @property
    def terminals(self) -> list[Done | Failed]:
        return [message for message in self.messages if isinstance(message, Done | Failed)]

    def _take(self, message: StreamMessage) -> None:
        self.messages.append(message)
        self.moves += isinstance(message, Status) and message.status == "migrating"
        if self.request_id is None and message.request_id is not None:
            self.request_id = self._assembler.request_id = message.request_id
        ended = self._assembler.done
        try:
            outputs = self._assembler.take(message)
        except StreamFailed as failure:
            self.end = failure.code
            return
        for output in outputs:
            for boot in output.text.split():
                generations = self.generations[output.choice]
                if (generation := f"{message.attempt}@{boot}") not in generations:
                    self.unannounced |= len(generations) > self.moves
                    generations.append(generation)
        if self._assembler.done and not ended:
            self.end = "done"

    def __repr__(self) -> str:
        heard = [_short(message) for message in self.messages]
        return f"<{self.inbox} of {self.request_id}: {self.end}, {dict(self.generations)}, {heard}>"


def _short(message: StreamMessage) -> str:
    who = f"{message.attempt}@{message.worker}"
    match message:
        case Status():
            return f"{message.status} {who}"
        case Chunk():
            return f"[{message.output.index}] {who}"
        case Done():
            return f"done {who}"
        case Failed():
            return f"{message.error.code} {who}: {message.error.message}"
