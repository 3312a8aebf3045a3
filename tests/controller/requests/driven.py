"""A `RequestStateMachine` that a test drives: the test sets its time and keeps what it says."""

from collections.abc import Sequence
from typing import Any

from controller.fleet.prefix_cache_index import PrefixCacheIndex
from controller.fleet.registry import NodeRegistry, WorkerGone
from controller.fleet.worker_view import WorkerView
from controller.lifecycle.machine import RequestStateMachine
from controller.requests.events import (
    DispatchReplyReceived,
    Event,
    RequestEventsReceived,
    RequestReceived,
    StatusOrCancelReceived,
    TimerFired,
    WorkerReported,
)
from controller.requests.instructions import (
    Instruction,
    LeaderOrders,
    PromptListCommand,
    SendControlOrder,
    SendDispatches,
    SendRequestState,
    SendStreamMessage,
)
from controller.requests.metrics import ControllerMetrics
from controller.requests.request import TrackedRequest
from controller.requests.request_trace import RequestTrace
from shared.bus import Bus
from shared.ids import BootId, ControllerId, RequestId, WorkerId
from shared.messages.control import ClaimedRequest, ClaimReport, ControlReply, RequestState
from shared.messages.dispatch import (
    DispatchRejection,
)
from shared.messages.events import EventType, WorkerEvent
from shared.messages.request_events import (
    AttemptFailed,
    RequestCompleted,
    RequestEvent,
    TokensEmitted,
)
from shared.messages.stream import ErrorDetails, FailedMessage, StreamMessage
from shared.refused_messages import RefusedMessages
from shared.settings import ClusterSettings
from shared.telemetry import SpanStart
from tests.controller.requests.wire import Sent, origin, word
from tests.controller.values import ADA, request
from tests.controller.values import report as worker_report

LEADER, LEADER_BOOT = ControllerId("c-1"), BootId("boot-of-c-1")
INBOX = "_INBOX.x"
LATER = "_INBOX.later"
FULL: dict[str, Any] = {"max_queue_depth": 1, "queued_requests": 1}
"""Of a report: it takes no more."""
_MOST_AT_ONCE = 5


class Driven:
    """
    Attributes:
        now: is moved by `pass_time` alone.
        said: all instructions, in order.
    """

    def __init__(
        self,
        *workers: str,
        term: int = 1,
        settled_s: float = 0.0,
        max_bytes: int = 1_000_000,
        strict: bool = False,
        most_per_client: int = 1000,
        unclaimed: Sequence[str] = (),
        turns_wait_s: float = 0.0,
        **controller: Any,
    ) -> None:
        """
        Args:
            workers: that are there and tell that they have nothing.
            settled_s: after so long each worker was heard that is there.
            unclaimed: workers that were heard before, and have not told what they have.
            turns_wait_s: turns wait for so long.
            controller: its settings.
        """
        self.now = 100.0
        self.said: list[Instruction] = []
        self._read: dict[type[Any], int] = {}
        settings = _settings(controller, strict=strict, most_per_client=most_per_client)
        self.registry = NodeRegistry(3.0, settings.controller.circuit_breaker)
        for name in unclaimed:
            self._hear("joined", name)
        self.kept = PrefixCacheIndex(
            Bus.__new__(Bus), self.registry, RefusedMessages(), lambda: self.now
        )
        self.machine = RequestStateMachine(
            LEADER,
            LEADER_BOOT,
            term,
            settings,
            self.registry,
            self.kept,
            ControllerMetrics(self.registry, RefusedMessages()),
            lambda: 0.5,
            max_bytes=max_bytes,
            now=self.now,
            settled_at=self.now + settled_s,
            turns_wait_until=self.now + turns_wait_s,
        )
        for name in unclaimed:
            self.on(WorkerReported(WorkerId(name)))
        for name in workers:
            self.join(name)

    def configure(self, *, most_per_client: int = 1000, **controller: Any) -> None:
        """Other settings hold, where the server authenticates."""
        settings = _settings(controller, strict=True, most_per_client=most_per_client)
        self.machine.configure(settings)

    # What happens.

    def on(self, event: Event) -> None:
        self.said += self.machine.on(event, self.now)
        unexpected = self.machine.metrics.unexpected_triggers
        assert not unexpected, (event, self.said[-4:])

    def pass_time(self, seconds: float) -> None:
        """As a leader's timer: whenever something is due."""
        until = self.now + seconds
        while (due := self.machine.next_due) <= until:
            self.now = max(self.now, due)
            self.be_on_time()
        self.now = until

    def be_on_time(self) -> None:
        """Do what is due now."""
        for _ in range(_MOST_AT_ONCE):
            self.on(TimerFired())
            assert self.machine.next_due >= self.now, "something was left undone"
            if self.machine.next_due > self.now:
                return
        raise AssertionError("something is due for ever")

    # Workers.

    def join(
        self, name: str, *requests: ClaimedRequest, boot: str = "b1", **fields: Any
    ) -> WorkerId:
        """A worker comes, and answers when it is claimed."""
        worker = self.hear(name, "joined", boot=boot, **fields)
        self.claimed(name, *requests)
        return worker

    def hear(self, name: str, kind: EventType = "heartbeat", **fields: Any) -> WorkerId:
        """A worker tells how it stands."""
        if (gone := self._hear(kind, name, **fields)) is not None:
            self.on(gone)
        if kind != "left":
            self.on(WorkerReported(WorkerId(name)))
        return WorkerId(name)

    def leave(self, *names: str) -> None:
        for name in names:
            self.hear(name, "left", boot=self.view(name).report.boot_id)

    def claimed(self, name: str, *requests: ClaimedRequest) -> None:
        """A worker answers the claim that it was sent last."""
        told = ClaimReport(term=self.machine.term, requests=list(requests))
        self.answer(self.last_order("claim", name), self.reply(name, claimed=told))

    def last_order(self, verb: str, name: str | None = None) -> SendControlOrder:
        """Of its kind, to any worker or to one."""
        orders: list[SendControlOrder] = self.said_as(SendControlOrder)
        return next(
            each
            for each in reversed(orders)
            if each.order.verb == verb and name in (None, each.worker)
        )

    def reply(self, name: str, *, ok: bool = True, **fields: Any) -> ControlReply:
        boot = self.view(name).report.boot_id
        return ControlReply(worker=WorkerId(name), boot_id=boot, ok=ok, **fields)

    def answer(self, order: SendControlOrder, reply: ControlReply | None) -> None:
        """None where there is none in time."""
        assert order.to_event is not None, order
        if (event := order.to_event(reply)) is not None:
            self.on(event)

    def view(self, name: str) -> WorkerView:
        view = self.registry.worker(WorkerId(name))
        assert view is not None, f"{name} is not there"
        return view

    def _hear(self, kind: EventType, name: str, **fields: Any) -> WorkerGone | None:
        told = worker_report(name, **{"term": 0, "max_queue_depth": 0, **fields})
        event = WorkerEvent(type=kind, worker=told)
        return self.registry.on_worker_event(event, self.now)

    # Requests.

    def ask(self, request_id: str = "r", *, inbox: str = INBOX, **fields: Any) -> TrackedRequest:
        """A client publishes a request."""
        return self._publish(request(request_id, now=self.now, **fields), inbox)

    def ask_traced(
        self, trace: SpanStart, request_id: str = "r", *, inbox: str = INBOX, **fields: Any
    ) -> TrackedRequest:
        """The same in a trace."""
        asked = request(request_id, now=self.now, **fields)
        asked.trace = RequestTrace.begun(trace, self.now)
        return self._publish(asked, inbox)

    def _publish(self, asked: TrackedRequest, inbox: str) -> TrackedRequest:
        asked.inboxes = [inbox]
        self.on(RequestReceived(asked))
        return asked

    def cancel(self, request_id: str = "r") -> None:
        self.on(StatusOrCancelReceived((ADA, RequestId(request_id)), "", cancel=True))

    def query(self, request_id: str = "r", *, cancel: bool = False) -> RequestState | None:
        """What a client is told that asks; None where nothing."""
        self.on(StatusOrCancelReceived((ADA, RequestId(request_id)), "_INBOX.query", cancel=cancel))
        answers = self.new(SendRequestState)
        return answers[-1].state if answers else None

    def state(self, request_id: str = "r") -> str | None:
        """As clients are told."""
        told = self.query(request_id)
        return told.state if told is not None else None

    def known(self, request_id: str = "r") -> TrackedRequest:
        known = self.machine.find((ADA, RequestId(request_id)))
        assert known is not None
        return known

    def sent(self) -> list[Sent]:
        """The messages of dispatches since the last look."""
        return [
            Sent.of(each, self.view(each.worker).report.boot_id)
            for each in self.new(SendDispatches)
        ]

    def next_sent(self) -> Sent:
        """The only new one, of one dispatch."""
        (sent,) = self.sent()
        assert sent.dispatch
        return sent

    def run(self, request_id: str = "r", **fields: Any) -> Sent:
        """A request is asked for, and a worker takes it."""
        self.ask(request_id, **fields)
        self.pass_time(0.01)
        sent = self.next_sent()
        self.accept(sent)
        return sent

    # What a worker says of its requests.

    def accept(self, sent: Sent) -> None:
        self.reply_to(sent, *[None] * len(sent.batch.dispatches))

    def reject(self, sent: Sent, code: str = "queue_full", **fields: Any) -> None:
        """All of them."""
        refusal = DispatchRejection(code=code, message=f"{sent.worker} says {code}", **fields)
        self.reply_to(sent, *[refusal] * len(sent.batch.dispatches))

    def reply_to(self, sent: Sent, *refusals: DispatchRejection | None) -> None:
        """One result for each dispatch, in order."""
        self.on(DispatchReplyReceived(sent.number, sent.reply(*refusals)))

    def emit(self, sent: Sent, index: int, *token_ids: int, **fields: Any) -> None:
        values = {"choice": 0, "text_sent": 0, **fields}
        tokens = list(token_ids)
        self.report(
            sent, TokensEmitted(**origin(sent.dispatch), index=index, token_ids=tokens, **values)
        )

    def finish(self, sent: Sent) -> None:
        self.report(sent, RequestCompleted(**origin(sent.dispatch)))

    def fail(self, sent: Sent, code: str = "request_failed", **fields: Any) -> None:
        """The client was told."""
        message = f"{sent.worker} says {code}"
        self.report(
            sent, AttemptFailed(**origin(sent.dispatch), code=code, message=message, **fields)
        )

    def requeue(self, sent: Sent, code: str = "draining", **fields: Any) -> None:
        self.fail(sent, code, terminal_sent=False, **fields)

    def report(self, sent: Sent, *events: RequestEvent) -> None:
        self.on(RequestEventsReceived(sent.worker, sent.boot, events))

    # What was said.

    def said_as(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.said if isinstance(each, kind)]

    def new(self, kind: type[Any]) -> list[Any]:
        """Since the last look at this kind."""
        found = self.said_as(kind)
        read, self._read[kind] = self._read.get(kind, 0), len(found)
        return found[read:]

    def told(self, inbox: str = INBOX) -> list[StreamMessage]:
        """All that an inbox was told."""
        return [each.message for each in self.said_as(SendStreamMessage) if inbox in each.inboxes]

    def words(self, inbox: str = INBOX) -> list[str | None]:
        """The same, short: reasons to wait, `done`, codes of errors."""
        return [word(message) for message in self.told(inbox)]

    def error(self) -> ErrorDetails:
        """With which the request `r` failed, as its client was told."""
        (end,) = [each for each in self.told() if isinstance(each, FailedMessage)]
        assert (end.request_id, self.state()) == ("r", "failed")
        return end.error

    def offered(self) -> list[tuple[str, int]]:
        """Worker and attempt of each message with a dispatch since the last look."""
        return [(sent.worker, sent.dispatch.attempt) for sent in self.sent()]

    def given(self) -> list[SendControlOrder]:
        """Orders to workers since the last look, but claims."""
        return [each for each in self.new(SendControlOrder) if each.order.verb != "claim"]

    def orders(self) -> list[tuple[str, LeaderOrders]]:
        """The same, with whom they are for."""
        return [(each.worker, each.order) for each in self.given()]

    def list_orders(self) -> list[tuple[str, str]]:
        """To the list runner, since the last look: each with its inbox."""
        return [(each.verb, each.inbox) for each in self.new(PromptListCommand)]


def _settings(controller: dict[str, Any], *, strict: bool, most_per_client: int) -> ClusterSettings:
    security = {"strict_inbox": strict, "max_requests_per_client": most_per_client}
    return ClusterSettings.model_validate(
        {
            "skills": {"chat": ["demo"]},
            "security": security,
            "controller": {"retry": {"jitter": 0}, **controller},
        }
    )
