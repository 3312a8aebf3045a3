"""What may happen to the requests of a leader: the events that `controller.lifecycle.machine`
takes."""

from collections.abc import Sequence
from typing import NamedTuple

from controller.fleet.registry import WorkerGone
from controller.requests.request import ClientRequest, RequestKey
from shared.ids import BootId, WorkerId
from shared.messages.control import Claimed, RequestRef
from shared.messages.conversation import Message
from shared.messages.dispatch import Dispatch, DispatchReply
from shared.messages.request_events import RequestEvent
from shared.messages.stream import Done, Failed, StreamError


class Published(NamedTuple):
    """A client published a request, maybe not for the first time."""

    request: ClientRequest


class Transferred(NamedTuple):
    """The leader before, which left, gave these, in this order."""

    requests: Sequence[ClientRequest]


class Queried(NamedTuple):
    """A client cancelled a request, or asked how it stands; the answer goes to `reply`, if there is
    any. Of a list clients cancel only the whole: `of_part` says that the list runner did it."""

    key: RequestKey
    reply: str
    cancel: bool = False
    of_part: bool = False


class WorkerHeard(NamedTuple):
    """A worker told how it stands; the registry knows it already."""

    worker: WorkerId


class WorkerClaimed(NamedTuple):
    """A worker answered a claim of `asked_at`."""

    worker: WorkerId
    boot_id: BootId
    claimed: Claimed
    asked_at: float


class ContentsTold(NamedTuple):
    """A worker told the contents of the first of these."""

    worker: WorkerId
    asked: Sequence[RequestRef]
    contents: Sequence[Dispatch]


class DispatchesAnswered(NamedTuple):
    """A worker answered a message of dispatches; None where nobody listens there."""

    number: int
    reply: DispatchReply | None


class RequestsReported(NamedTuple):
    """What a worker told of its requests."""

    worker: WorkerId
    boot_id: BootId
    events: Sequence[RequestEvent]


class HistoryTold(NamedTuple):
    """What was said before in the session of a request; None where that cannot be had.

    `too_large`: for a message.
    """

    key: RequestKey
    messages: Sequence[Message] | None
    too_large: bool = False


class ListEnded(NamedTuple):
    """The list runner is done with a list, and has told its client."""

    key: RequestKey
    end: Done | Failed


class Finish(NamedTuple):
    """A request shall end with an error, whatever its worker does; all of them without a key."""

    key: RequestKey | None
    error: StreamError


class LinkRestored(NamedTuple):
    """Something may have been missed: the connection is new, or this process stood still."""


class LeavingBegan(NamedTuple):
    """Nothing goes to its first worker any more."""


class TimePassed(NamedTuple):
    """Something is due."""


Event = (
    Published | Transferred | Queried | WorkerHeard | WorkerGone | WorkerClaimed | ContentsTold
    | DispatchesAnswered | RequestsReported | HistoryTold | ListEnded | Finish | LinkRestored
    | LeavingBegan | TimePassed
)  # fmt: skip
