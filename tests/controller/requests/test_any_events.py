"""Whatever happens, in whatever order: nothing fails, no client is told two ends, all ends."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller.requests.events import (
    DispatchReplyReceived,
    EndRequests,
    LinkRestored,
    PromptListEnded,
    RequestsTransferred,
    SessionHistoryReceived,
)
from controller.requests.instructions import (
    PromptListCommand,
    RecordSpans,
    SendControlOrder,
    SendDispatches,
    SendStreamMessage,
)
from controller.requests.request import TrackedRequest
from controller.requests.restored_request import transferred_request
from controller.requests.store import RETAINED_AFTER_END_S
from shared.ids import RequestId, WorkerId
from shared.messages.control import CancelRequest
from shared.messages.dispatch import DispatchRejection
from shared.messages.stream import (
    DoneMessage,
    ErrorDetails,
    FailedMessage,
    StreamMessage,
    Timings,
    Usage,
)
from shared.telemetry import Span, SpanStart
from tests.controller.requests.claimed import old_dispatch
from tests.controller.requests.driven import FULL, Driven
from tests.controller.requests.states import HELLO
from tests.controller.requests.truthful_boot import Had, TruthfulBoot
from tests.controller.requests.wire import Sent
from tests.controller.values import ADA, DEMO, request
from tests.tiers import examples

WORKERS = ("w1", "w2")
BODIES: tuple[dict[str, Any], ...] = (
    {"prompt": "x", "timeout_ms": 3000},
    {"prompt": "x", "stream": False, "n": 2},
    {"prompt": None, "messages": [HELLO], "session_id": "s"},
    {"prompt": None, "messages": [HELLO], "session_id": "s", "history": "kept"},
    {"prompt": "x", "session_id": "s", "priority": "high", "timeout_ms": 2000},
    {"prompt": ["x", "y"]},
)
REFUSALS = ("queue_full", "not_claimed", "model_unavailable", "worker_lost")
FAILURES = ("engine_crashed", "request_failed", "draining")

_NUMBERS = st.integers(0, len(BODIES) - 1)
_NAMES = st.sampled_from(WORKERS)
_MOSTLY = st.sampled_from([True, True, False])
_HAD = st.tuples(
    _NAMES,
    st.integers(0, len(BODIES) - 2),
    st.integers(1, 3),
    st.integers(0, 2),
    st.sampled_from(["running", "returned", "finished", "failed"]),
)


class AnyEvents(RuleBasedStateMachine):
    """A leader in its second term, two workers that may have something of the first one, and
    clients."""

    def __init__(self) -> None:
        super().__init__()
        self.boots = {name: TruthfulBoot(name) for name in WORKERS}
        self.driven = Driven(
            term=2,
            unclaimed=WORKERS,
            retry={"initial_delay_ms": 50},
            circuit_breaker={"failure_threshold": 2, "recovery_timeout_ms": 500},
        )
        self.lists: list[TrackedRequest] = []
        self.ends: dict[tuple[str, str | None, int], DoneMessage | FailedMessage] = {}
        self.lives: dict[str, int] = {}
        self.numbers = itertools.count()

    @initialize(had=st.lists(_HAD, max_size=4))
    def begin(self, had: Sequence[tuple[str, int, int, int, str]]) -> None:
        for name, number, attempt, tokens, state in had:
            dispatch = old_dispatch(f"r{number}", attempt, **BODIES[number])
            key = dispatch.request_id, dispatch.attempt
            if all(key not in boot.had for boot in self.boots.values()):
                self.boots[name].had[key] = Had(dispatch, state, list(range(tokens)))
        for name in WORKERS:
            self._beat(name)
        self._carry()

    # Clients.

    @rule(number=_NUMBERS, conflicts=st.booleans(), at=st.sampled_from("ab"))
    def publish(self, number: int, conflicts: bool, at: str) -> None:
        body = {"prompt": "another"} if conflicts else BODIES[number]
        inbox = self._inbox(request(f"r{number}", **body), at)
        self.driven.ask_traced(self._trace(), f"r{number}", inbox=inbox, **body)
        self._carry()

    @rule(number=_NUMBERS)
    def cancel(self, number: int) -> None:
        self.driven.cancel(f"r{number}")
        self._carry()

    @rule(number=_NUMBERS)
    def transfer(self, number: int) -> None:
        """The leader before gives what it had."""
        asked = request(f"r{number}", **BODIES[number])
        asked.inboxes = [self._inbox(asked, "a")]
        told = asked.transfer(0.0)
        self.driven.on(RequestsTransferred([transferred_request(told, [DEMO], self.driven.now)]))
        self._carry()

    # Workers.

    @precondition(lambda self: any(boot.sent for boot in self.boots.values()))
    @rule(data=st.data(), late=st.booleans())
    def answer_dispatches(self, data: st.DataObject, late: bool) -> None:
        boot = self._some(data, "sent")
        sent = boot.sent.pop(data.draw(st.integers(0, len(boot.sent) - 1)))
        refusals: list[DispatchRejection | None] = []
        for dispatch in sent.batch.dispatches:
            code = data.draw(st.sampled_from([None, None, None, *REFUSALS]))
            refusals.append(
                DispatchRejection(code=code, message="no") if code is not None else None
            )
            if code is None:
                boot.take(dispatch)
        if late:
            self.driven.pass_time(1.1)
        self.driven.reply_to(sent, *refusals)
        self._carry()

    @precondition(lambda self: any(boot.sent for boot in self.boots.values()))
    @rule(data=st.data(), arrives=st.booleans())
    def lose_dispatches(self, data: st.DataObject, arrives: bool) -> None:
        """Nobody listens; or the worker has them, and what it says gets lost."""
        boot = self._some(data, "sent")
        sent = boot.sent.pop()
        if arrives:
            for dispatch in sent.batch.dispatches:
                boot.take(dispatch)
        else:
            self.driven.on(DispatchReplyReceived(sent.number, None))
        self._carry()

    @precondition(lambda self: any(boot.running for boot in self.boots.values()))
    @rule(data=st.data(), heard=_MOSTLY)
    def go_on(self, data: st.DataObject, heard: bool) -> None:
        boot = self._some(data, "running")
        had = data.draw(st.sampled_from(boot.running))
        what = data.draw(st.sampled_from(["token", "token", "finish", "fail", "requeue"]))
        boot.go_on(self.driven, had, what, data.draw(st.sampled_from(FAILURES)), heard=heard)
        self._carry()

    @precondition(lambda self: any(boot.orders for boot in self.boots.values()))
    @rule(data=st.data(), answers=_MOSTLY)
    def answer_order(self, data: st.DataObject, answers: bool) -> None:
        boot = self._some(data, "orders")
        order = boot.orders.pop(data.draw(st.integers(0, len(boot.orders) - 1)))
        self.driven.answer(order, boot.reply(order) if answers else None)
        self._carry()

    @rule(name=_NAMES, full=st.booleans(), term=st.sampled_from([1, 2]))
    def heartbeat(self, name: str, full: bool, term: int) -> None:
        self._beat(name, term=term, **(FULL if full else {}))
        self._carry()

    @rule(name=_NAMES, how=st.sampled_from(["left", "again", "both"]))
    def end_worker(self, name: str, how: str) -> None:
        boot = self.boots[name]
        if how != "again" and self.driven.registry.worker(WorkerId(name)) is not None:
            self.driven.leave(name)
        self.boots[name] = TruthfulBoot(name, boot.number + 1)
        if how != "left":
            self._beat(name)
        for order in boot.orders:
            self.driven.answer(order, None)
        self._carry()

    # The leader.

    @rule(seconds=st.sampled_from([0.001, 0.05, 0.6, 1.1, 3.1, 31.0]))
    def wait(self, seconds: float) -> None:
        self.driven.pass_time(seconds)
        if seconds > 30:
            for boot in self.boots.values():
                boot.forget_ended()
        self._carry()

    @rule(what=st.sampled_from(["restored", "finish", "history"]), number=_NUMBERS)
    def happen(self, what: str, number: int) -> None:
        key = ADA, RequestId(f"r{number}")
        match what:
            case "restored":
                self.driven.on(LinkRestored())
            case "finish":
                self.driven.on(EndRequests(key, ErrorDetails.of("draining", "it shut down")))
            case _:
                self.driven.on(SessionHistoryReceived(key, None))
        self._carry()

    @precondition(lambda self: self.lists)
    @rule(well=st.booleans())
    def end_list(self, well: bool) -> None:
        whole = self.lists.pop()
        origin = whole.request_id, whole.attempt, None
        done = DoneMessage(*origin, Usage(1, 0, 1), Timings(0, 0, 0, 0))
        failed = FailedMessage(*origin, ErrorDetails.of("queue_full", "no room"))
        self.driven.on(PromptListEnded(whole.key, done if well else failed))
        self._carry()

    # What must hold.

    @invariant()
    def what_is_counted_is_what_there_is(self) -> None:
        machine = self.driven.machine
        assert machine.active == len(machine._store)
        assert machine.waiting == machine.metrics.totals.waiting <= machine.active
        placed = {request.placement for request in machine._store}
        for view in self.driven.registry.workers:
            assert placed.issuperset([*view._offered, *view._accepted])

    def teardown(self) -> None:
        """All that is said arrives, and workers end what they have."""
        for _ in range(60):
            for name in WORKERS:
                self._beat(name)
            while self.lists:
                self.end_list(well=True)
            for boot in self.boots.values():
                self._let_end(boot)
            self.driven.pass_time(1.0)
            self._carry()
        machine = self.driven.machine
        assert (len(machine._store), machine.active) == (0, 0)
        assert machine._store.memory_bytes() == 0
        assert (machine.waiting, machine.offered) == (0, 0)
        for view in self.driven.registry.workers:
            books = view.load, view.unreported, view.choices, view.unreported_choices
            assert (*books, view._offered, view._accepted) == (0, 0, 0, 0, {}, {})
            assert view.breaker is not None and not view.breaker._trials

        self._check_traces()

    def _trace(self) -> SpanStart:
        """Each in another trace, so that it shows where spans come from."""
        number = next(self.numbers) + 1
        return SpanStart(f"{number:032x}", f"{number:016x}", True)

    def _check_traces(self) -> None:
        """A traced request ends once, and its waits and attempts follow each other."""
        traces: dict[str, list[Span]] = {}
        for recorded in self.driven.said_as(RecordSpans):
            for span in recorded.spans:
                traces.setdefault(span.trace_id, []).append(span)
        for spans in traces.values():
            assert len({span.span_id for span in spans}) == len(spans)
            phases = [span for span in spans if span.name in ("waiting", "attempt")]
            for before, after in itertools.pairwise(phases):
                assert before.ended_at == after.started_at
            if ends := [span for span in spans if span.name == "request"]:
                (whole,) = ends
                assert spans[-1] is whole
                if phases:
                    assert phases[0].started_at == whole.started_at
                if phases and whole.attributes["mlx.outcome"] != "lost":
                    assert phases[-1].ended_at <= whole.ended_at

    def _let_end(self, boot: TruthfulBoot) -> None:
        while boot.sent:
            sent = boot.sent.pop(0)
            for dispatch in sent.batch.dispatches:
                boot.take(dispatch)
            self.driven.accept(sent)
            self._carry()
        while boot.orders:
            order = boot.orders.pop(0)
            self.driven.answer(order, boot.reply(order))
            self._carry()
        for had in boot.running:
            boot.go_on(self.driven, had, "finish", heard=True)
            self._carry()

    def _beat(self, name: str, **fields: Any) -> None:
        values = {"term": 2, "dispatches_per_message": 16, **fields}
        self.driven.hear(name, boot=self.boots[name].id, **values)

    # What is said arrives.

    def _carry(self) -> None:
        """Workers have what was sent there; clients were told."""
        for sent in self.driven.new(SendDispatches):
            boot = self.boots[sent.worker]
            if self.driven.registry.is_alive(sent.worker, boot.id):
                boot.sent.append(Sent.of(sent, boot.id))
            else:
                self.driven.on(DispatchReplyReceived(sent.number, None))
        for order in self.driven.new(SendControlOrder):
            self._take(self.boots[order.worker], order)
        served = [each for each in self.driven.new(PromptListCommand) if each.verb == "serve"]
        self.lists += [each.request for each in served]
        for told in self.driven.new(SendStreamMessage):
            for inbox in told.inboxes:
                self._hear(inbox, told.message)

    def _take(self, boot: TruthfulBoot, order: SendControlOrder) -> None:
        if isinstance(order.order, CancelRequest):
            key = order.order.request_id, order.order.attempt
            had = boot.had.get(key)
            if order.order.silent:
                boot.drop(key)
            elif had is not None and had.state == "running":
                boot.go_on(self.driven, had, "finish", heard=True)
        elif order.to_event is not None:
            boot.orders.append(order)

    def _hear(self, inbox: str, message: StreamMessage) -> None:
        if isinstance(message, DoneMessage | FailedMessage):
            key = inbox, message.request_id, message.attempt
            first = self.ends.setdefault(key, message)
            assert first == message, f"two ends of one attempt: {first} and {message}"

    def _inbox(self, asked: TrackedRequest, at: str) -> str:
        """Of one life of a request: half a minute after its end another one may begin."""
        known = self.driven.machine.find(asked.key)
        is_old = (
            known is not None
            and (known.ended_at or math.inf) < self.driven.now - RETAINED_AFTER_END_S
        )
        if known is None or is_old:
            self.lives[asked.request_id] = next(self.numbers)
        elif known.fingerprint != asked.fingerprint:
            return f"_INBOX.conflict.{next(self.numbers)}"
        return f"_INBOX.{at}.{self.lives.get(asked.request_id)}"

    def _some(self, data: st.DataObject, what: str) -> TruthfulBoot:
        """A worker that has some of these."""
        boots = [boot for boot in self.boots.values() if getattr(boot, what)]
        return data.draw(st.sampled_from(boots))


AnyEvents.TestCase.settings = settings(max_examples=examples(100, 2000), stateful_step_count=50)
test_whatever_happens_all_ends_well = AnyEvents.TestCase
