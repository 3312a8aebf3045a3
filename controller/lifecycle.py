"""The life of a request, in one table.

    arrived ─► waiting ─► fetching ─► queued ─► offered ─► running ─► ended
                  │                     ▲  ▲       │          │
                  └─► delegated         │  └───────┘          │  a worker said no
                      (a list)          └── backing_off ◄─────┘  an attempt failed

A request is in one state; what happens to it is one trigger; `TRANSITIONS` says which action of
`controller.request_machine` follows. Events come in and instructions go out, as values: the machine
waits for nothing, has no clock and does no I/O. (The same shape: dask's `worker_state_machine`.)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from controller.registry import WorkerGone
from controller.request import Request, RequestKey, State
from shared.ids import BootId, WorkerId
from shared.messages.control import (
    AttachStream,
    CancelRequest,
    Claimed,
    ClaimWorker,
    ControlReply,
    ForgetSession,
    RequestRef,
    RequestState,
    TellContents,
    TellSession,
)
from shared.messages.dispatch import Dispatch, DispatchReply
from shared.messages.events import RequestEvent
from shared.messages.request import Message
from shared.messages.stream import Done, Failed, StreamError, StreamMessage

STATES: Mapping[State, str] = {
    "waiting": "it may not begin: for an earlier turn of its session, or until who leads since a "
    "moment ago knows what the workers have",
    "fetching": "a worker is asked for what was said before in its session",
    "queued": "no worker can take it now",
    "offered": "a worker was asked to take it",
    "running": "a worker has it",
    "backing_off": "an attempt failed, the next one comes after a pause",
    "delegated": "the list runner serves it, prompt by prompt",
    "ended": "its client was told the end; it is remembered for half a minute",
}

Trigger = Literal[
    "may_begin", "history_told", "capacity_changed", "pause_over", "offer_accepted", "offer_rejected",
    "tokens_emitted", "finished", "failed", "returned", "worker_gone", "list_ended",
    "published_again", "not_attached", "cancel_asked", "deadline_passed",
]  # fmt: skip

Action = Literal[
    "nothing", "begin", "place", "place_with_history", "run", "look_further", "note_tokens",
    "end_well", "end_failed", "retry", "end_list", "listen", "listen_late", "attach",
    "attach_to_list", "tell_end_again", "serve_again", "end_cancelled", "cancel_offer",
    "cancel_at_worker", "cancel_list", "fail_in_time", "stop_in_time",
]  # fmt: skip

_NO: Action = "nothing"

_TABLE: Mapping[Trigger, Sequence[Action]] = {
    #                    waiting          fetching              queued           offered          running             backing_off      delegated         ended
    "may_begin":        ("begin",         _NO,                  _NO,             _NO,             _NO,                _NO,             _NO,              _NO),
    "history_told":     (_NO,             "place_with_history", _NO,             _NO,             _NO,                _NO,             _NO,              _NO),
    "capacity_changed": (_NO,             _NO,                  "place",         _NO,             _NO,                _NO,             _NO,              _NO),
    "pause_over":       (_NO,             _NO,                  _NO,             _NO,             _NO,                "place",         _NO,              _NO),
    "offer_accepted":   (_NO,             _NO,                  _NO,             "run",           _NO,                _NO,             _NO,              _NO),
    "offer_rejected":   (_NO,             _NO,                  _NO,             "look_further",  _NO,                _NO,             _NO,              _NO),
    "tokens_emitted":   (_NO,             _NO,                  _NO,             "note_tokens",   "note_tokens",      _NO,             _NO,              _NO),
    "finished":         (_NO,             _NO,                  _NO,             "end_well",      "end_well",         _NO,             _NO,              _NO),
    "failed":           (_NO,             _NO,                  _NO,             "end_failed",    "end_failed",       _NO,             _NO,              _NO),
    "returned":         (_NO,             _NO,                  _NO,             "retry",         "retry",            _NO,             _NO,              _NO),
    "worker_gone":      (_NO,             _NO,                  _NO,             _NO,             "retry",            _NO,             _NO,              _NO),
    "list_ended":       (_NO,             _NO,                  _NO,             _NO,             _NO,                _NO,             "end_list",       _NO),
    "published_again":  ("listen",        "listen",             "listen",        "listen_late",   "attach",           "listen",        "attach_to_list", "tell_end_again"),
    "not_attached":     ("listen",        "listen",             "listen",        "listen_late",   "listen_late",      "listen",        "attach_to_list", "serve_again"),
    "cancel_asked":     ("end_cancelled", "end_cancelled",      "end_cancelled", "cancel_offer",  "cancel_at_worker", "end_cancelled", "cancel_list",    _NO),
    "deadline_passed":  ("fail_in_time",  "fail_in_time",       "fail_in_time",  "stop_in_time",  "stop_in_time",     "fail_in_time",  _NO,              _NO),
}  # fmt: skip

TRANSITIONS: Mapping[tuple[State, Trigger], Action] = {
    (state, trigger): action
    for trigger, actions in _TABLE.items()
    for state, action in zip(get_args(State), actions, strict=True)
}

# Events: what happened.


@dataclass(frozen=True, slots=True)
class Published:
    """A client published a request, maybe not for the first time."""

    request: Request


@dataclass(frozen=True, slots=True)
class Transferred:
    """The leader before, which left, gave these; in this order."""

    requests: Sequence[Request]


@dataclass(frozen=True, slots=True)
class Queried:
    """A client cancelled a request, or asked how it stands; the answer goes to `reply`, if there is
    any. Of a list clients cancel only the whole."""

    key: RequestKey
    reply: str
    cancel: bool = False
    of_part: bool = False


@dataclass(frozen=True, slots=True)
class WorkerHeard:
    """A worker told how it stands; the registry knows it already."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class WorkerClaimed:
    """A worker answered a claim; None where it did not."""

    worker: WorkerId
    boot_id: BootId | None
    claimed: Claimed | None


@dataclass(frozen=True, slots=True)
class ContentsTold:
    """A worker told the contents of the first of these; None where it did not answer."""

    worker: WorkerId
    asked: Sequence[RequestRef]
    contents: Sequence[Dispatch] | None


@dataclass(frozen=True, slots=True)
class DispatchesAnswered:
    """A worker answered a message of dispatches; None where nobody listens there."""

    number: int
    reply: DispatchReply | None


@dataclass(frozen=True, slots=True)
class RequestsReported:
    """What a worker told of its requests."""

    worker: WorkerId
    boot_id: BootId
    events: Sequence[RequestEvent]


@dataclass(frozen=True, slots=True)
class HistoryTold:
    """What was said before in the session of a request; None where that cannot be had.

    `too_large`: for a message.
    """

    key: RequestKey
    messages: Sequence[Message] | None
    too_large: bool = False


@dataclass(frozen=True, slots=True)
class StreamAttached:
    """A worker was asked to send the stream of an attempt to one more inbox, too."""

    key: RequestKey
    attempt: int
    again: Request
    attached: bool


@dataclass(frozen=True, slots=True)
class ListEnded:
    """The list runner is done with a list, and has told its client."""

    key: RequestKey
    end: Done | Failed


@dataclass(frozen=True, slots=True)
class Finish:
    """A request shall end with an error, whatever its worker does; all of them without a key."""

    key: RequestKey | None
    error: StreamError


@dataclass(frozen=True, slots=True)
class LinkRestored:
    """Something may have been missed: the connection is new."""


@dataclass(frozen=True, slots=True)
class LeavingBegan:
    """Nothing goes to its first worker any more."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Something is due."""


Event = (
    Published | Transferred | Queried | WorkerHeard | WorkerGone | WorkerClaimed | ContentsTold
    | DispatchesAnswered | RequestsReported | HistoryTold | StreamAttached | ListEnded | Finish
    | LinkRestored | LeavingBegan | TimePassed
)  # fmt: skip

# Instructions: what the driver is to do.


@dataclass(frozen=True, slots=True)
class TellClient:
    """Publish a message of a stream; what gets lost clients ask for."""

    inboxes: Sequence[str]
    message: StreamMessage
    multiplex: bool


@dataclass(frozen=True, slots=True)
class SendDispatches:
    """Ask a worker to take requests; `DispatchesAnswered` with this number follows, or nothing."""

    worker: WorkerId
    number: int
    payload: bytes


LeaderOrders = (
    CancelRequest | AttachStream | ClaimWorker | TellContents | TellSession | ForgetSession
)


@dataclass(frozen=True, slots=True)
class GiveOrder:
    """Send an order to a worker. With `then`, what it makes of the answer happened; it gets None
    where there is none in time."""

    worker: WorkerId
    order: LeaderOrders
    then: Callable[[ControlReply | None], Event] | None = None


@dataclass(frozen=True, slots=True)
class AnswerQuery:
    reply: str
    client: str
    state: RequestState


@dataclass(frozen=True, slots=True)
class ServeList:
    """Serve a list of prompts; `ListEnded` follows."""

    request: Request


@dataclass(frozen=True, slots=True)
class AttachToList:
    request: Request
    inbox: str


@dataclass(frozen=True, slots=True)
class CancelList:
    request: Request


@dataclass(frozen=True, slots=True)
class FailList:
    request: Request
    error: StreamError


@dataclass(frozen=True, slots=True)
class Log:
    """`fields` are those of a log line."""

    level: int
    text: str
    fields: Mapping[str, object] = field(default_factory=dict)


Instruction = (
    TellClient | SendDispatches | GiveOrder | AnswerQuery | ServeList | AttachToList | CancelList
    | FailList | Log
)  # fmt: skip
