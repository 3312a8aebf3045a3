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

    @property
    def is_whole(self) -> bool:
        return self.choice is None or len(self.request.choices) == 1

    def messages(self) -> list[OutgoingMessage]:
        """Return what is there of the stream now; without its end if that will come to the inbox
        by itself."""
        request = self.request
        messages = request.replay(self.choice, self.index)
        accepted = request.accepted_message()
        if accepted is not None and request.end is None and not self.index:
            messages.insert(0, accepted)
        if request.end is not None and not request.end_published and self.inbox in request.inboxes:
            messages.pop()
        return [OutgoingMessage(request, message, (self.inbox,)) for message in messages]
