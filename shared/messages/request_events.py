"""Events of requests, which workers report to the leader. All past tense."""

from typing import Annotated, Literal

from pydantic import Field

from shared.codec import WireMessagePart
from shared.ids import BootId, ClientName, RequestId, WorkerId
from shared.messages.base import Attempt, Count
from shared.messages.sender import Sender, SentMessage
from shared.messages.stream import FinishReason


class TokensEmitted(WireMessagePart):
    """New tokens of one choice; published before the client gets them.

    Attributes:
        finish_reason: with the last tokens of a choice, if there are other choices.
        cached_tokens: of the prompts; with the first tokens.
    """

    type: Literal["tokens"] = "tokens"
    request_id: RequestId
    client: ClientName
    attempt: Attempt
    choice: int
    index: int
    token_ids: list[int]
    text_sent: int
    finish_reason: FinishReason | None = None
    cached_tokens: Count | None = None


class RequestCompleted(WireMessagePart):
    """A request completed; the worker has sent, or is about to send, its `done`."""

    type: Literal["finished"] = "finished"
    request_id: RequestId
    client: ClientName
    attempt: Attempt


class AttemptFailed(WireMessagePart):
    """An attempt failed.

    Attributes:
        terminal_sent: the client has the terminal message; if not, the request may migrate.
        suspect: the request may have crashed an engine.
    """

    type: Literal["failed"] = "failed"
    request_id: RequestId
    client: ClientName
    attempt: Attempt
    code: str
    message: str
    retry_after_ms: int | None = None
    terminal_sent: bool = True
    suspect: bool = False


RequestEvent = Annotated[
    TokensEmitted | RequestCompleted | AttemptFailed, Field(discriminator="type")
]


class RequestEvents(SentMessage):
    """All events of one decode step for the requests of one controller, in one message."""

    worker: WorkerId
    boot_id: BootId
    events: list[RequestEvent]

    @property
    def senders(self) -> tuple[Sender]:
        return (Sender(self.worker, self.boot_id),)
