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
    """

    def __init__(
        self, publish: Callable[[str, bytes, str], None], probes: str, max_bytes: int
    ) -> None:
        self._publish = publish
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
                if job.multiplex:
                    multiplexed[inbox].append((job, message))
                else:
                    self._publish(inbox, encode(message), self._probe(inbox, [(job, message)]))
        for inbox, queued in multiplexed.items():
            for begin in range(0, len(queued), _MAX_PER_MESSAGE):
                self._publish_multiplexed(inbox, queued[begin : begin + _MAX_PER_MESSAGE])

    def _publish_multiplexed(
        self, inbox: str, batch: Sequence[tuple[PromptListJob, StreamMessage]]
    ) -> None:
        payload = encode_multiplexed([message for _, message in batch])
        if len(payload) <= self.max_bytes:
            self._publish(inbox, payload, self._probe(inbox, batch))
            return
        for job, message in batch:
            payload = encode(message, multiplex=True)
            self._publish(inbox, payload, self._probe(inbox, [(job, message)]))

    def _probe(self, inbox: str, batch: Iterable[tuple[PromptListJob, StreamMessage]]) -> str:
        """Return the reply subject of a probe if one is due, else an empty one."""
        now = boottime_s()
        due = [
            job.inboxes.should_probe(inbox, now)
            for job, message in batch
            if job.streams and not isinstance(message, DoneMessage | FailedMessage)
        ]
        return f"{self._probes}.{inbox}" if any(due) else ""
