"""Puts a stream together from its messages: a state machine without I/O.

Drops what comes twice, ignores attempts lower than the highest seen and all that comes after
`done`; a gap in the tokens is an error.
"""

from shared.errors import StreamFailed
from shared.ids import RequestId, WorkerId
from shared.messages.stream import (
    ChoiceOutput,
    Chunk,
    Done,
    Failed,
    Status,
    StatusName,
    StreamMessage,
    Timings,
    Usage,
)


class Assembler:
    """The state of one stream, as its client knows it.

    Attributes:
        status: the last one heard; None before the first message.
        done: the end has come; `usage` and `timings` are set unless it was an error.
    """

    def __init__(self, request_id: RequestId, *, first_index: int = 0) -> None:
        """`first_index` is that of the first token to come, above 0 for a resumed stream."""
        self.request_id = request_id
        self._first_index = first_index
        self.status: StatusName | None = None
        self.progress: float | None = None
        self.seed: int | None = None
        self.worker: WorkerId | None = None
        self.attempt = 0
        self.done = False
        self.usage: Usage | None = None
        self.timings: Timings | None = None
        self._next_index: dict[int, int] = {}
        self._finished: set[int] = set()

    @property
    def heard(self) -> bool:
        return self.status is not None

    def take(self, message: StreamMessage) -> list[ChoiceOutput]:
        """What is new in a message.

        Raises:
            StreamFailed: the message is the stream's bad end, or tokens before it are missing.
        """
        if self.done or message.request_id not in (self.request_id, None):
            return []
        if message.attempt < self.attempt:
            return []
        self.attempt = message.attempt
        self.worker = message.worker or self.worker
        match message:
            case Status():
                self.status, self.progress = message.status, message.progress
                self.seed = message.seed if message.seed is not None else self.seed
                return []
            case Chunk():
                self.status, self.progress = "running", None
                return self._new(message.output)
            case Done():
                self.status = "running"
                outputs = [new for output in message.outputs for new in self._new(output)]
                self.done, self.usage, self.timings = True, message.usage, message.timings
                return outputs
            case Failed():
                self.done = True
                raise message.error.to_exception()

    def _new(self, output: ChoiceOutput) -> list[ChoiceOutput]:
        expected = self._next_index.get(output.choice, self._first_index)
        end = output.index + len(output.token_ids)
        if output.index > expected:
            self.done = True
            raise StreamFailed(
                f"tokens {expected} to {output.index - 1} of choice {output.choice} are missing",
                code="stream_broken",
            )
        if end < expected or (end == expected and (output.token_ids or self._ended(output))):
            return []  # it came before
        if output.index < expected:
            # Never sent by a worker: its text cannot be cut to the new tokens.
            self.done = True
            raise StreamFailed(
                f"tokens {output.index} to {end - 1} of choice {output.choice} came in pieces "
                "that do not fit together",
                code="stream_broken",
            )
        self._next_index[output.choice] = end
        if output.finish_reason is not None:
            self._finished.add(output.choice)
        return [output]

    def _ended(self, output: ChoiceOutput) -> bool:
        return output.choice in self._finished
