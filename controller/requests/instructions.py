"""The instructions of the machine to the leader, and the list in which an event collects them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from controller.requests.client_messages import waiting_status
from controller.requests.events import Event
from controller.requests.request import TrackedRequest
from controller.requests.trace_attributes import request_attributes
from shared.ids import ControllerId, WorkerId
from shared.messages.control import (
    AttachInbox,
    AttemptRef,
    CancelRequest,
    ClaimWorker,
    ControlReply,
    ForgetSession,
    RequestState,
    TellContents,
    TellSession,
)
from shared.messages.stream import ErrorDetails, StreamMessage
from shared.telemetry import Span


class SendStreamMessage(NamedTuple):
    """Publish a message of a stream. Clients ask again for messages that are lost."""

    inboxes: Sequence[str]
    message: StreamMessage
    multiplex: bool


class SendDispatches(NamedTuple):
    """Offer requests to a worker; `DispatchReplyReceived` with this number follows, or nothing."""

    worker: WorkerId
    number: int
    payload: bytes


ReplyToEvent = Callable[[ControlReply | None], Event | None]

LeaderOrders = (
    CancelRequest | AttachInbox | ClaimWorker | TellContents | TellSession | ForgetSession
)


class SendControlOrder(NamedTuple):
    """Send an order to a worker. `to_event` turns the reply, or None if there is none in time, into
    an event for the machine."""

    worker: WorkerId
    order: LeaderOrders
    to_event: "ReplyToEvent | None" = None


class SendRequestState(NamedTuple):
    reply: str
    state: RequestState


class PromptListCommand(NamedTuple):
    """Serve a list of prompts (`PromptListEnded` follows), attach one more inbox to it, cancel it
    for its client, or fail it with an error."""

    verb: Literal["serve", "attach", "cancel", "fail"]
    request: TrackedRequest
    inbox: str = ""
    error: ErrorDetails | None = None


class WriteLog(NamedTuple):
    """Write a log line; `fields` are its structured fields."""

    level: int
    text: str
    fields: Mapping[str, object]


class RecordSpans(NamedTuple):
    """Send spans of a traced request to the collector."""

    spans: Sequence[Span]


Instruction = (
    SendStreamMessage
    | SendDispatches
    | SendControlOrder
    | SendRequestState
    | PromptListCommand
    | WriteLog
    | RecordSpans
)


class InstructionBuilder:
    """The instructions that follow from one event, in order.

    Attributes:
        controller, term: of the leader.
        now: when the event happened.
    """

    def __init__(self, controller: ControllerId, term: int, now: float) -> None:
        self.controller = controller
        self.term = term
        self.now = now
        self._collected: list[Instruction] = []

    def take(self) -> list[Instruction]:
        """Remove and return the instructions since the last call."""
        collected, self._collected = self._collected, []
        return collected

    def add(self, *instructions: Instruction) -> None:
        self._collected += instructions

    def send_to_client(
        self, request: TrackedRequest, message: StreamMessage, inboxes: Sequence[str]
    ) -> None:
        request.updated_at = self.now
        if inboxes:
            self.add(SendStreamMessage(tuple(inboxes), message, request.contents.multiplex))

    def send_waiting_status(self, request: TrackedRequest, inboxes: Sequence[str]) -> None:
        """Send the status of a request that no worker has, if its client streams."""
        listeners = inboxes if request.contents.stream else ()
        self.send_to_client(request, waiting_status(request), listeners)

    def order(
        self,
        worker: WorkerId,
        order: LeaderOrders,
        then: ReplyToEvent | None = None,
    ) -> None:
        self.add(SendControlOrder(worker, order, then))

    def cancel_attempt(self, request: TrackedRequest, *, silent: bool = False) -> None:
        """Cancel the request at its worker. Best effort: if the order is lost, attempt numbers
        fence what the worker still sends."""
        if request.worker is not None:
            self.cancel(request.worker, request.ref, silent=silent)

    def cancel(self, worker: WorkerId, ref: AttemptRef, *, silent: bool = False) -> None:
        """Cancel an attempt; if `silent`, the worker sends its client no terminal message."""
        self.order(worker, CancelRequest(term=self.term, silent=silent, **dict(ref)))

    def attach(self, request: TrackedRequest, inbox: str) -> None:
        """Have the worker that has, or had, a request send its stream to one more inbox. If the
        order is lost, the client publishes again."""
        if request.worker is not None:
            self.order(
                request.worker, AttachInbox(term=self.term, inbox=inbox, **dict(request.ref))
            )

    def record_spans(self, request: TrackedRequest) -> None:
        """Record the spans of a request that ended since the last call."""
        if request.trace is not None and (spans := request.trace.take()):
            self.add(RecordSpans(spans))

    def end_trace(self, request: TrackedRequest, outcome: str, code: str = "") -> None:
        """Record the last spans of a request.

        Args:
            outcome: the error code, `ok`, `cancelled` or `lost`.
            code: the error code, if the request failed.
        """
        if request.trace is not None:
            attributes = request_attributes(request, outcome)
            request.trace.ended(attributes, request.reason, self.now, code)
            self.record_spans(request)

    def log(
        self, level: int, text: str, request: TrackedRequest | None = None, code: str | None = None
    ) -> None:
        fields: dict[str, object] = {"code": code} if code is not None else {}
        if request is not None:
            fields |= {
                "request_id": request.request_id,
                "client": request.client,
                "attempt": request.attempt,
                "model": request.model,
                "worker": request.worker,
            }
        self.add(WriteLog(level, text, fields))

    def info(
        self, text: str, request: TrackedRequest | None = None, code: str | None = None
    ) -> None:
        self.log(logging.INFO, text, request, code)

    def warn(
        self, text: str, request: TrackedRequest | None = None, code: str | None = None
    ) -> None:
        self.log(logging.WARNING, text, request, code)
