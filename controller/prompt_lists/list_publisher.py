"""Publishes the streams of lists to their clients, and probes whether the clients still listen."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from controller.prompt_lists.list_job import PromptListJob
from shared.clock import boottime_s
from shared.messages.stream import (
    DoneMessage,
    FailedMessage,
    StreamMessage,
    encode,
    encode_multiplexed,
)

_MAX_PER_MESSAGE = 128


class PromptListPublisher:
    """
    Args:
        publish: publishes a payload to a subject, with a reply subject.
        probes: prefix of the reply subjects of probes; the inbox of the client follows.

    Attributes:
        max_bytes: of a message.
        sent_bytes: of all messages so far.
    """

    def __init__(
        self, publish: Callable[[str, bytes, str], None], probes: str, max_bytes: int
    ) -> None:
        self._publish = publish
        self.sent_bytes = 0
        self._probes = probes
        self.max_bytes = max_bytes
        self._outgoing: list[tuple[PromptListJob, StreamMessage, Sequence[str]]] = []

    def add(self, job: PromptListJob, message: StreamMessage, inboxes: Sequence[str]) -> None:
        """Publish a message to inboxes at the next `flush`."""
        self._outgoing.append((job, message, inboxes))

    def flush(self) -> None:
        """Publish all messages; to an inbox that accepts multiplexed messages many at once."""
        outgoing, self._outgoing = self._outgoing, []
        multiplexed: defaultdict[str, list[tuple[PromptListJob, StreamMessage]]] = defaultdict(list)
        for job, message, inboxes in outgoing:
            for inbox in inboxes:
                if not job.multiplex:
                    self._publish_one(inbox, job, message)
                elif message is job.end:
                    self._publish_multiplexed(inbox, multiplexed.pop(inbox, ()))
                    self._publish_one(inbox, job, message)
                else:
                    multiplexed[inbox].append((job, message))
        for inbox, queued in multiplexed.items():
            self._publish_multiplexed(inbox, queued)

    def _publish_multiplexed(
        self, inbox: str, queued: Sequence[tuple[PromptListJob, StreamMessage]]
    ) -> None:
        for begin in range(0, len(queued), _MAX_PER_MESSAGE):
            batch = queued[begin : begin + _MAX_PER_MESSAGE]
            payload = encode_multiplexed([message for _, message in batch])
            if len(payload) <= self.max_bytes:
                self._send(inbox, payload, batch)
                continue
            for job, message in batch:
                self._publish_one(inbox, job, message)

    def _publish_one(self, inbox: str, job: PromptListJob, message: StreamMessage) -> None:
        is_end = message is job.end
        payload = job.encoded_end if is_end else encode(message, multiplex=job.multiplex)
        self._send(inbox, payload, [(job, message)])

    def _send(
        self, inbox: str, payload: bytes, batch: Sequence[tuple[PromptListJob, StreamMessage]]
    ) -> None:
        self.sent_bytes += len(payload)
        self._publish(inbox, payload, self._probe(inbox, batch))

    def _probe(self, inbox: str, batch: Iterable[tuple[PromptListJob, StreamMessage]]) -> str:
        """Return the reply subject of a probe if one is due, else an empty one."""
        now = boottime_s()
        due = [
            job.inboxes.should_probe(inbox, now)
            for job, message in batch
            if job.streams and not isinstance(message, DoneMessage | FailedMessage)
        ]
        return f"{self._probes}.{inbox}" if any(due) else ""
