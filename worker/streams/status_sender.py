"""Stream status: the messages of a stream that carry no tokens, such as its state and
keep-alives."""

import time
from collections.abc import Callable

from shared.messages.stream import KEEP_ALIVE_S
from shared.stream_subscribers import PROBE_INTERVAL_S
from worker.models.worker_models import ModelCatalogue
from worker.requests.active_request import ActiveRequest
from worker.streams.outgoing import OutgoingBatch, OutgoingMessage

_PROGRESS_INTERVAL_S = 0.5


class StreamStatusSender:
    """Sends the status messages of streams.

    Args:
        models: for the progress of loading.
        put: passes messages to the publisher.
    """

    def __init__(self, models: ModelCatalogue, put: Callable[[OutgoingBatch], None]) -> None:
        self._models = models
        self._put = put

    def accepted(self, request: ActiveRequest) -> None:
        """Send `accepted`: this worker answers for the request from now on."""
        if (message := request.accepted_message()) is not None:
            self._put(OutgoingBatch(client_messages=[OutgoingMessage.to_all(request, message)]))

    def send(self, request: ActiveRequest) -> None:
        """Send the state of a request to all its inboxes."""
        message = request.state_message()
        request.last_sent_at = time.monotonic()
        if message is not None:
            self._put(OutgoingBatch(client_messages=[OutgoingMessage.to_all(request, message)]))

    def renew(self, request: ActiveRequest, now: float) -> None:
        """Send a keep-alive, or the progress of loading the request's model, if it is due."""
        silent_s = now - request.last_sent_at
        if silent_s >= (PROBE_INTERVAL_S if request.inboxes.doubtful else KEEP_ALIVE_S):
            self.send(request)
        elif request.status == "loading" and silent_s >= _PROGRESS_INTERVAL_S:
            self._send_loading(request)

    def _send_loading(self, request: ActiveRequest) -> None:
        model = self._models[request.model]
        progress = model.overall_progress
        if model.state == "warm":
            request.status, request.progress = "queued", None
            self.send(request)
        elif progress is not None and round(progress, 2) != request.progress:
            request.progress = round(progress, 2)
            self.send(request)
