"""What a controller says itself to the clients of its requests."""

import logging
import time

from controller.owned_request import OwnedRequest
from shared.bus import Bus
from shared.errors import BusError
from shared.messages.stream import Done, Failed, StreamMessage
from shared.messages.stream import encode as encode_stream

logger = logging.getLogger(__name__)


class Telling:
    """Publishes to the inboxes of requests; what gets lost clients ask for."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def status(self, request: OwnedRequest, message: StreamMessage) -> None:
        """Send it; clients that do not stream get none."""
        request.last_sent_at = time.monotonic()
        if request.request.stream:
            await self._to_all(request, message)

    async def end(self, request: OwnedRequest, message: Done | Failed) -> None:
        """Send the last message of a request."""
        await self._to_all(request, message)

    async def to(self, request: OwnedRequest, message: StreamMessage, inbox: str) -> None:
        """Send a message of a request to one inbox."""
        body = encode_stream(message, multiplex=request.request.multiplex)
        try:
            await self._bus.publish(inbox, body)
        except BusError as error:
            logger.warning("a message to a client was lost: %s", error.message)

    async def _to_all(self, request: OwnedRequest, message: StreamMessage) -> None:
        for inbox in request.inboxes:
            await self.to(request, message, inbox)
