"""What the machine has the leader do: instructions, and the list in which an event collects
them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from controller.requests.events import Event
from controller.requests.request import ClientRequest
from shared.ids import ControllerId, WorkerId
from shared.messages.control import (
    AttachStream,
    CancelRequest,
    ClaimWorker,
    ControlReply,
    ForgetSession,
    RequestRef,
    RequestState,
    TellContents,
    TellSession,
)
from shared.messages.stream import StreamError, StreamMessage


class SendToClient(NamedTuple):
    """Publish a message of a stream; what gets lost clients ask for."""

    inboxes: Sequence[str]
    message: StreamMessage
    multiplex: bool


class SendDispatches(NamedTuple):
    """Ask a worker to take requests; `DispatchesAnswered` with this number follows, or nothing."""

    worker: WorkerId
    number: int
    payload: bytes


Then = Callable[[ControlReply | None], Event | None]

LeaderOrders = (
    CancelRequest | AttachStream | ClaimWorker | TellContents | TellSession | ForgetSession
)


class SendControlOrder(NamedTuple):
    """Send an order to a worker. With `then`, what it makes of the answer happened; it gets None
    where there is none in time."""

    worker: WorkerId
    order: LeaderOrders
    then: "Then | None" = None


class AnswerQuery(NamedTuple):
    reply: str
    state: RequestState


class SendToListRunner(NamedTuple):
    """Serve a list of prompts (`ListEnded` follows), tell it to one more inbox, too, end it as its
    client asked, or end it with an error."""

    verb: Literal["serve", "attach", "cancel", "fail"]
    request: ClientRequest
    inbox: str = ""
    error: StreamError | None = None


class Log(NamedTuple):
    """`fields` are those of a log line."""

    level: int
    text: str
    fields: Mapping[str, object]


Instruction = (
    SendToClient | SendDispatches | SendControlOrder | AnswerQuery | SendToListRunner | Log
)


class Instructions:
    """What is to be done because of an event, in this order.

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
        """All since the last call."""
        collected, self._collected = self._collected, []
        return collected

    def add(self, *instructions: Instruction) -> None:
        self._collected += instructions

    def tell(self, request: ClientRequest, message: StreamMessage, inboxes: Sequence[str]) -> None:
        request.told_at = self.now
        if inboxes:
            self.add(SendToClient(tuple(inboxes), message, request.contents.multiplex))

    def tell_waiting(self, request: ClientRequest, inboxes: Sequence[str]) -> None:
        """How it stands, to clients that stream."""
        self.tell(request, request.waiting_message(), inboxes if request.contents.stream else ())

    def order(
        self,
        worker: WorkerId,
        order: LeaderOrders,
        then: Then | None = None,
    ) -> None:
        self.add(SendControlOrder(worker, order, then))

    def cancel_attempt(self, request: ClientRequest, *, silent: bool = False) -> None:
        """Best effort: where it gets lost, attempt numbers fence what still comes."""
        if request.worker is not None:
            self.cancel(request.worker, request.ref, silent=silent)

    def cancel(self, worker: WorkerId, ref: RequestRef, *, silent: bool = False) -> None:
        """`silent`: its client is told nothing."""
        self.order(worker, CancelRequest(term=self.term, silent=silent, **dict(ref)))

    def attach(self, request: ClientRequest, inbox: str) -> None:
        """Have the worker that has, or had, a request send its stream to one more inbox; where that
        gets lost its client publishes again."""
        if request.worker is not None:
            self.order(
                request.worker, AttachStream(term=self.term, inbox=inbox, **dict(request.ref))
            )

    def log(
        self, level: int, text: str, request: ClientRequest | None = None, code: str | None = None
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
        self.add(Log(level, text, fields))

    def info(
        self, text: str, request: ClientRequest | None = None, code: str | None = None
    ) -> None:
        self.log(logging.INFO, text, request, code)

    def warn(
        self, text: str, request: ClientRequest | None = None, code: str | None = None
    ) -> None:
        self.log(logging.WARNING, text, request, code)
