"""What goes between a leader, workers and clients, short."""

from dataclasses import dataclass
from typing import Any

from controller.requests.instructions import SendDispatches
from shared.codec import decode
from shared.ids import BootId, WorkerId
from shared.messages.dispatch import (
    Dispatch,
    DispatchBatch,
    DispatchRejection,
    DispatchReply,
    DispatchResult,
)
from shared.messages.stream import DoneMessage, FailedMessage, StatusMessage, StreamMessage


@dataclass(frozen=True, slots=True)
class Sent:
    """A message of dispatches."""

    worker: WorkerId
    boot: BootId
    number: int
    batch: DispatchBatch

    @classmethod
    def of(cls, sent: SendDispatches, boot: BootId) -> "Sent":
        return cls(sent.worker, boot, sent.number, decode(DispatchBatch, sent.payload))

    def reply(self, *refusals: DispatchRejection | None) -> DispatchReply:
        """One result for each dispatch, in order."""
        results = [
            DispatchResult(**origin(dispatch), refusal=refusal)
            for dispatch, refusal in zip(self.batch.dispatches, refusals, strict=True)
        ]
        return DispatchReply(worker=self.worker, boot_id=self.boot, results=results)

    @property
    def dispatch(self) -> Dispatch:
        """The only one."""
        (dispatch,) = self.batch.dispatches
        return dispatch


def origin(dispatch: Dispatch) -> dict[str, Any]:
    return {
        "request_id": dispatch.request_id,
        "client": dispatch.client,
        "attempt": dispatch.attempt,
    }


def word(message: StreamMessage) -> str | None:
    match message:
        case StatusMessage():
            return message.reason or message.status
        case DoneMessage():
            return "done"
        case FailedMessage():
            return message.error.code
    return "chunk"
