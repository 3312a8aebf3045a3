"""The events of `controller.lifecycle.machine`: what can happen to the requests of a leader."""

from collections.abc import Sequence
from typing import NamedTuple

from controller.fleet.registry import WorkerGone
from controller.requests.request import RequestKey, TrackedRequest
from shared.ids import BootId, WorkerId
from shared.messages.control import AttemptRef, ClaimReport
from shared.messages.conversation import Message
from shared.messages.dispatch import Dispatch, DispatchReply
from shared.messages.request_events import RequestEvent
from shared.messages.stream import DoneMessage, ErrorDetails, FailedMessage


class RequestReceived(NamedTuple):
    """A client published a request, maybe not for the first time."""

    request: TrackedRequest


class RequestsTransferred(NamedTuple):
    """The previous leader, which shut down, sent these requests, in this order."""

    requests: Sequence[TrackedRequest]


class StatusOrCancelReceived(NamedTuple):
    """A client cancelled a request or asked for its state. The answer is published on `reply`,
    unless that is empty. A client can only cancel a list as a whole: `of_part` says that the list
    runner cancels a part."""

    key: RequestKey
    reply: str
    cancel: bool = False
    of_part: bool = False


class WorkerReported(NamedTuple):
    """A worker reported its state; the registry has the report already."""

    worker: WorkerId


class ClaimAnswered(NamedTuple):
    """A worker answered a claim that was sent at `asked_at`."""

    worker: WorkerId
    boot_id: BootId
    claimed: ClaimReport
    asked_at: float


class ClaimRefused(NamedTuple):
    """A worker refused the claim of this leader: another one claimed it, in `term`."""

    worker: WorkerId
    boot_id: BootId
    term: int


class RequestContentsReceived(NamedTuple):
    """A worker sent the contents of the first of the requests that it was asked for."""

    worker: WorkerId
    asked: Sequence[AttemptRef]
    contents: Sequence[Dispatch]


class DispatchReplyReceived(NamedTuple):
    """A worker answered a message of dispatches; `reply` is None if nobody subscribes there."""

    number: int
    reply: DispatchReply | None


class RequestEventsReceived(NamedTuple):
    """A worker reported what happened to its requests."""

    worker: WorkerId
    boot_id: BootId
    events: Sequence[RequestEvent]


class SessionHistoryReceived(NamedTuple):
    """The earlier messages of the session of a request; None if they are not available.

    `too_large`: they do not fit into one message.
    """

    key: RequestKey
    messages: Sequence[Message] | None
    too_large: bool = False


class PromptListEnded(NamedTuple):
    """The list runner finished a list and sent its client the terminal message."""

    key: RequestKey
    end: DoneMessage | FailedMessage


class PromptListGrew(NamedTuple):
    """What the list runner keeps of the answer to a list takes more memory than before."""

    key: RequestKey
    more_bytes: int


class EndRequests(NamedTuple):
    """End a request with an error, whatever its worker does; without a key, all requests."""

    key: RequestKey | None
    error: ErrorDetails


class LinkRestored(NamedTuple):
    """Messages may have been missed: the connection is new, or this process was stalled."""


class ShutdownBegan(NamedTuple):
    """The leader shuts down: requests that no worker has yet stay here, to be transferred."""


class TimerFired(NamedTuple):
    """The timer fired: deadlines of the machine may have passed."""


Event = (
    RequestReceived | RequestsTransferred | StatusOrCancelReceived | WorkerReported | WorkerGone
    | ClaimAnswered | ClaimRefused | RequestContentsReceived | DispatchReplyReceived
    | RequestEventsReceived | SessionHistoryReceived | PromptListEnded | PromptListGrew
    | EndRequests | LinkRestored | ShutdownBegan | TimerFired
)  # fmt: skip
