"""What is published for streams: events for the leader, messages for clients."""

from dataclasses import dataclass, field

from shared.messages.request_events import RequestEvent
from shared.messages.stream import StreamMessage
from worker.requests.active_request import ActiveRequest

_APPROXIMATE_MESSAGE_BYTES = 256


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message of a stream, and the inboxes that get it."""

    request: ActiveRequest
    message: StreamMessage
    inboxes: tuple[str, ...]

    @classmethod
    def to_all(cls, request: ActiveRequest, message: StreamMessage) -> "OutgoingMessage":
        """Address the inboxes that are attached now; one that is attached later gets the whole
        stream then."""
        return cls(request, message, tuple(request.inboxes))


@dataclass(slots=True)
class OutgoingBatch:
    """What one decode step, or another event, publishes; events go to the leader that owns the
    request when they are published."""

    events: list[tuple[ActiveRequest, RequestEvent]] = field(default_factory=list)
    client_messages: list[OutgoingMessage] = field(default_factory=list)

    @property
    def cost_bytes(self) -> int:
        return _APPROXIMATE_MESSAGE_BYTES * (len(self.events) + len(self.client_messages))
