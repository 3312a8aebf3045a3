"""The leader: feeds events to the request machine, and carries out the machine's instructions."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import assert_never

from controller.fleet.link_monitor import LinkMonitor
from controller.leader.election import LeaderElection
from controller.lifecycle.machine import RequestStateMachine
from controller.prompt_lists.list_runner import TICK_S, PromptListRunner
from controller.requests.events import (
    DispatchReplyReceived,
    Event,
    LinkRestored,
    RequestEventsReceived,
    TimerFired,
)
from controller.requests.instructions import (
    Instruction,
    PromptListCommand,
    RecordSpans,
    ReplyToEvent,
    SendControlOrder,
    SendDispatches,
    SendRequestState,
    SendStreamMessage,
    WriteLog,
)
from shared import subjects
from shared.bus import Bus, IncomingMessage, Subscription
from shared.change_notifier import ChangeNotifier
from shared.codec import encode
from shared.errors import BusError, DecodeError
from shared.ids import ControllerId, WorkerId
from shared.messages.control import ControlReply
from shared.messages.dispatch import DispatchReply
from shared.messages.request_events import RequestEvents
from shared.messages.sender import decode_from
from shared.messages.stream import encode as encode_stream
from shared.refused_messages import RefusedMessages
from shared.tasks import Tasks
from shared.telemetry import Tracer

logger = logging.getLogger(__name__)

_ANSWER_S = 2.0
_LATE_S = 0.1
"""A timer that fires so late shows that this process stalled."""
_RETRY_S = 0.1
_CONFIRM_S = 0.5
"""After a stall, the leader asks the other controllers if JetStream does not answer within this
time."""
_MAX_UNCONFIRMED_S = 5.0
"""If not all of them answer, the leader continues this long after its link is back: a heartbeat of
another leader would have arrived by then."""


class LeaderService:
    """One term of a leader.

    After a stall of this process or its connection, another controller may lead: actions are
    deferred until JetStream, or all other controllers, confirm that none does.
    """

    def __init__(
        self,
        bus: Bus,
        controller: ControllerId,
        machine: RequestStateMachine,
        leadership: LeaderElection,
        link: LinkMonitor,
        refused: RefusedMessages,
        tracer: Tracer | None = None,
    ) -> None:
        self.machine = machine
        self._bus = bus
        self._controller = controller
        self._leadership = leadership
        self._link = link
        self._refused = refused
        self._tracer = tracer
        self._stalls = link.stalls
        self._deferred: list[Callable[[], None]] = []
        self._reply_inbox, self._list_inbox = bus.new_inbox(), bus.new_inbox()
        self._list_runner = PromptListRunner(
            self.handle,
            machine.find,
            lambda request: machine.router.capacity(request, time.monotonic()),
            self._send,
            self._list_inbox,
            bus.max_payload,
            lambda: bus.connections,
            refused,
        )
        self._subscriptions: list[Subscription] = []
        self._tasks = Tasks()
        self._changes = ChangeNotifier()
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    async def open(self) -> None:
        """Subscribe to answers and events of workers, and to the messages for parts of lists."""
        bus = self._bus
        self._subscriptions = [
            await bus.subscribe(f"{self._reply_inbox}.*", self._on_reply),
            await bus.subscribe(f"{self._list_inbox}.>", self._on_list_message),
            await bus.subscribe(
                subjects.request_event_all(self._controller), self._on_request_events
            ),
        ]

    async def close(self) -> None:
        """Stop sending, and unsubscribe."""
        self._closed = True
        self._changes.notify()
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.end()
        for subscription in self._subscriptions:
            await subscription.unsubscribe()

    def handle(self, event: Event) -> None:
        """Handle an event, and carry out the instructions that follow."""
        self._when_confirmed(lambda: self._handle(event))

    def _handle(self, event: Event) -> None:
        for instruction in self.machine.on(event, time.monotonic()):
            self._carry_out(instruction)
        self._set_timer()
        self._changes.notify()

    # Confirmation after a stall.

    def _when_confirmed(self, act: Callable[[], None]) -> None:
        """Act now, or once it is confirmed that no other controller leads."""
        if self._is_confirmed:
            act()
        else:
            self._defer(act)

    @property
    def _is_confirmed(self) -> bool:
        return self._leadership.leads and not self._deferred and not self._was_stalled

    @property
    def _was_stalled(self) -> bool:
        link = self._link
        return link.stalls != self._stalls or link.stalled or not self._bus.connected

    def _defer(self, act: Callable[[], None]) -> None:
        """Act later; never, if another controller leads."""
        if self._leadership.leads and not self._closed:
            self._deferred.append(act)
            if len(self._deferred) == 1:
                self._tasks.start(self._confirm_and_resume())

    async def _confirm_and_resume(self) -> None:
        """Wait for the confirmation; then act on what was deferred or may have been missed."""
        until = math.inf
        while self._leadership.leads:
            is_linked = await self._link.check()
            until = min(until, time.monotonic() + _MAX_UNCONFIRMED_S) if is_linked else math.inf
            if is_linked and (await self._confirm() or time.monotonic() >= until):
                self._stalls = self._link.stalls
                self.handle(LinkRestored())
                self.handle(TimerFired())  # deferred, too: after all that arrived meanwhile
                deferred, self._deferred = self._deferred, []
                for act in deferred:
                    self._when_confirmed(act)
                return
            await asyncio.sleep(_RETRY_S)
        self._deferred.clear()

    async def _confirm(self) -> bool:
        try:
            async with asyncio.timeout(_CONFIRM_S):
                return await self._leadership.confirm()
        except (BusError, TimeoutError):
            with contextlib.suppress(BusError):
                return await self._leadership.others_stand_by()
        return False

    async def until_idle(self) -> None:
        """Return once every request has ended."""
        await self._changes.wait_until(lambda: not self.machine.active or self._closed)

    async def until_offers_answered(self) -> None:
        """Return once every offered request was accepted or rejected."""
        await self._changes.wait_until(lambda: not self.machine.offered or self._closed)

    # Instructions.

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case SendDispatches(worker, number, payload):
                self._send(subjects.worker_infer(worker), payload, f"{self._reply_inbox}.{number}")
            case SendStreamMessage(inboxes, message, multiplex):
                body = encode_stream(message, multiplex=multiplex)
                for inbox in inboxes:
                    self._send(inbox, body)
            case SendControlOrder(worker, order, then):
                subject, payload = subjects.worker_control(worker, order.verb), encode(order)
                if then is None:
                    self._send(subject, payload)
                else:
                    self._tasks.start(self._send_order(worker, subject, payload, then))
            case SendRequestState(reply, state):
                self._send(reply, encode(state))
            case WriteLog(level, text, fields):
                logger.log(level, text, extra=dict(fields))
            case RecordSpans(spans):
                if self._tracer is not None:
                    self._tracer.record(spans)
            case PromptListCommand():
                if self._list_runner.idle:
                    self._tasks.start(self._run_lists())
                self._list_runner.handle(instruction)
            case _:
                assert_never(instruction)

    def _send(self, subject: str, payload: bytes, reply: str = "") -> None:
        try:
            self._bus.send(subject, payload, reply=reply)
        except BusError as error:
            logger.warning("a message on %s could not be sent: %s", subject, error.message)

    async def _send_order(
        self, worker: WorkerId, subject: str, payload: bytes, then: ReplyToEvent
    ) -> None:
        reply: ControlReply | None = None
        try:
            if self._was_stalled:  # the order would be sent after the stall
                raise BusError("this process stalled")
            answer = await self._bus.request(subject, payload, timeout_s=_ANSWER_S)
            boot_id = self.machine.boot_of(worker)
            reply = decode_from(worker, ControlReply, answer.payload, boot_id=boot_id)
        except BusError as error:
            logger.debug("worker %s did not answer an order: %s", worker, error.message)
        except DecodeError as error:
            self._refused.add(error, subject)
        if reply is not None and reply.code == "stale_term":
            self._leadership.on_refused()
        if (event := then(reply)) is not None:
            self.handle(event)

    # Events.

    async def _on_reply(self, message: IncomingMessage) -> None:
        number = subjects.reply_number(message.subject)
        asked = self.machine.asked(number)
        if asked is None:
            return  # nobody, or the answer is late
        if message.no_responders:
            self.handle(DispatchReplyReceived(number, None))
            return
        worker, boot_id = asked
        try:
            reply = decode_from(worker, DispatchReply, message.payload, boot_id=boot_id)
        except DecodeError as error:
            self._refused.add(error, subjects.worker_infer(worker))
            return
        if any(each.refusal and each.refusal.code == "stale_term" for each in reply.results):
            self._leadership.on_refused()
        self.handle(DispatchReplyReceived(number, reply))

    async def _on_request_events(self, message: IncomingMessage) -> None:
        try:
            report = decode_from(
                subjects.event_sender(message.subject), RequestEvents, message.payload
            )
        except DecodeError as error:
            self._refused.add(error, message.subject)
            return
        self.handle(RequestEventsReceived(report.worker, report.boot_id, report.events))

    async def _on_list_message(self, message: IncomingMessage) -> None:
        self._when_confirmed(lambda: self._list_runner.on_message(message))

    # Time.

    async def _run_lists(self) -> None:
        await asyncio.sleep(TICK_S)
        while not self._list_runner.idle:
            self._when_confirmed(self._list_runner.tick)
            await asyncio.sleep(TICK_S)

    def _set_timer(self) -> None:
        """Schedule `TimerFired`. A timer that fires too early is harmless, so events do not
        postpone it."""
        at = self.machine.next_due
        if at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, at - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        late_s = time.monotonic() - self._timer_at
        self._timer, self._timer_at = None, math.inf
        if late_s > _LATE_S:
            self._timer_at = -math.inf  # events that come meanwhile set no other timer
            self._tasks.start(self._read_replies_first())
        else:
            self.handle(TimerFired())

    async def _read_replies_first(self) -> None:
        """Handle unread messages of workers before the timer: after a round trip they have been
        read. Otherwise a client could receive a waiting status after its terminal message."""
        await self._link.check()
        self._timer_at = math.inf
        self.handle(TimerFired())
