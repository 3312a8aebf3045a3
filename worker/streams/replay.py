"""A stream that is sent to an inbox once more."""

from dataclasses import dataclass

from shared.ids import ClientName
from worker.requests.active_request import ActiveRequest, RequestKey
from worker.streams.outgoing import OutgoingMessage


@dataclass(frozen=True, slots=True)
class Replay:
    """From a token index on; `choice` None: all choices."""

    request: ActiveRequest
    inbox: str
    choice: int | None = None
    index: int = 0

    @property
    def client(self) -> ClientName:
        return self.request.key[0]

    @property
    def key(self) -> tuple[RequestKey, str]:
        return self.request.key, self.inbox

    def messages(self) -> list[OutgoingMessage]:
        """Return what is there of the stream now."""
        messages = self.request.replay(self.choice, self.index)
        accepted = self.request.accepted_message()
        if accepted is not None and self.request.end is None and not self.index:
            messages.insert(0, accepted)
        return [OutgoingMessage(self.request, message, (self.inbox,)) for message in messages]
