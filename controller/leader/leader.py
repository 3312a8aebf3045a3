"""What a controller does while it leads: it carries out what the machine says, and tells it what
happened."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import assert_never

from controller.fleet.link_monitor import LinkMonitor
from controller.leader.election import LeaderElection
from controller.lifecycle.machine import RequestMachine
from controller.prompt_lists.list_runner import TICK_S, PromptListRunner
from controller.requests.events import (
    DispatchesAnswered,
    Event,
    LinkRestored,
    RequestsReported,
    TimePassed,
)
from controller.requests.instructions import (
    AnswerQuery,
    Instruction,
    Log,
    SendControlOrder,
    SendDispatches,
    SendToClient,
    SendToListRunner,
    Then,
)
from shared import subjects
from shared.bus import Bus, BusMessage, Subscription
from shared.changes import Changes
from shared.codec import decode, encode
from shared.errors import BusError, DecodeError
from shared.ids import ControllerId, WorkerId
from shared.messages.control import ControlReply
from shared.messages.dispatch import DispatchReply
from shared.messages.request_events import RequestEvents
from shared.messages.stream import encode as encode_stream
from shared.tasks import Tasks

logger = logging.getLogger(__name__)

_ANSWER_S = 2.0
_LATE_S = 0.1
"""A timer that comes so late tells that this process stood still."""
_AGAIN_S = 0.1
_CONFIRMED_S = 0.5
"""A leader that was away asks the other controllers if JetStream has not answered by then."""
_UNSURE_S = 5.0
"""If they do not all answer, it goes on after this time: another leader would have been heard by
then."""


class Leader:
    """One term of a controller.

    Where this process stood still, or was cut off, another one may lead since: nothing is done and
    sent until JetStream has said that none does.
    """

    def __init__(
        self,
        bus: Bus,
        controller: ControllerId,
        machine: RequestMachine,
        leadership: LeaderElection,
        link: LinkMonitor,
    ) -> None:
        self.machine = machine
        self._bus = bus
        self._controller = controller
        self._leadership = leadership
        self._link = link
        self._lapses = link.lapses
        self._held: list[Callable[[], None]] = []
        self._replies, self._inbox = bus.new_inbox(), bus.new_inbox()
        self._lists = PromptListRunner(
            self.on,
            machine.find,
            lambda request: machine.router.capacity(request, time.monotonic()),
            self._send,
            self._inbox,
            bus.max_payload,
            lambda: bus.connections,
        )
        self._subscriptions: list[Subscription] = []
        self._tasks = Tasks()
        self._changes = Changes()
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    async def open(self) -> None:
        """Hear what workers answer and tell."""
        bus = self._bus
        self._subscriptions = [
            await bus.subscribe(f"{self._replies}.*", self._on_reply),
            await bus.subscribe(f"{self._inbox}.>", self._on_part),
            await bus.subscribe(subjects.request_event(self._controller), self._on_reported),
        ]

    async def close(self) -> None:
        """Send nothing more, hear nothing more."""
        self._closed = True
        self._changes.notify()
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.end()
        for subscription in self._subscriptions:
            await subscription.unsubscribe()

    def on(self, event: Event) -> None:
        """Something happened: do what is to be done."""
        self._when_sure(lambda: self._take(event))

    def _take(self, event: Event) -> None:
        for instruction in self.machine.on(event, time.monotonic()):
            self._carry_out(instruction)
        self._set_timer()
        self._changes.notify()

    # Sure to lead.

    def _when_sure(self, act: Callable[[], None]) -> None:
        """Do it now, or when JetStream has said that nobody else leads."""
        if self._is_sure:
            act()
        else:
            self._hold(act)

    @property
    def _is_sure(self) -> bool:
        return self._leadership.leads and not self._held and not self._was_away

    @property
    def _was_away(self) -> bool:
        link = self._link
        return link.lapses != self._lapses or link.away or not self._bus.connected

    def _hold(self, act: Callable[[], None]) -> None:
        """Do it later; never, if another one leads."""
        if self._leadership.leads and not self._closed:
            self._held.append(act)
            if len(self._held) == 1:
                self._tasks.start(self._make_sure())

    async def _make_sure(self) -> None:
        """Go on if nobody else leads; then with what may have been missed."""
        until = time.monotonic() + _UNSURE_S
        while self._leadership.leads:
            came_back = await self._link.check()
            if came_back and (await self._is_confirmed() or time.monotonic() >= until):
                self._lapses = self._link.lapses
                self.on(LinkRestored())
                self.on(TimePassed())  # after all that came meanwhile
                held, self._held = self._held, []
                for act in held:
                    self._when_sure(act)
                return
            await asyncio.sleep(_AGAIN_S)
        self._held.clear()

    async def _is_confirmed(self) -> bool:
        try:
            async with asyncio.timeout(_CONFIRMED_S):
                return await self._leadership.confirm()
        except (BusError, TimeoutError):
            with contextlib.suppress(BusError):
                return await self._leadership.others_stand_by()
        return False

    async def until_idle(self) -> None:
        """Return once every request has ended."""
        await self._changes.wait_until(lambda: not self.machine.active or self._closed)

    async def until_nothing_is_offered(self) -> None:
        """Return once no worker has yet to answer whether it takes a request."""
        await self._changes.wait_until(lambda: not self.machine.offered or self._closed)

    # Instructions.

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case SendDispatches(worker, number, payload):
                self._send(subjects.worker_infer(worker), payload, f"{self._replies}.{number}")
            case SendToClient(inboxes, message, multiplex):
                body = encode_stream(message, multiplex=multiplex)
                for inbox in inboxes:
                    self._send(inbox, body)
            case SendControlOrder(worker, order, then):
                subject, payload = subjects.worker_control(worker, order.verb), encode(order)
                if then is None:
                    self._send(subject, payload)
                else:
                    self._tasks.start(self._ask(worker, subject, payload, then))
            case AnswerQuery(reply, state):
                self._send(reply, encode(state))
            case Log(level, text, fields):
                logger.log(level, text, extra=dict(fields))
            case SendToListRunner():
                if self._lists.idle:
                    self._tasks.start(self._tend_lists())
                self._lists.take(instruction)
            case _:
                assert_never(instruction)

    def _send(self, subject: str, payload: bytes, reply: str = "") -> None:
        try:
            self._bus.send(subject, payload, reply=reply)
        except BusError as error:
            logger.warning("a message on %s was lost: %s", subject, error.message)

    async def _ask(self, worker: WorkerId, subject: str, payload: bytes, then: Then) -> None:
        reply: ControlReply | None = None
        try:
            if self._was_away:  # else it would go out later
                raise BusError("this process was away")
            answer = await self._bus.request(subject, payload, timeout_s=_ANSWER_S)
            reply = decode(ControlReply, answer.payload)
        except (BusError, DecodeError) as error:
            logger.debug("worker %s does not answer: %s", worker, error.message)
        if reply is not None and reply.code == "stale_term":
            self._leadership.on_refused()
        if (event := then(reply)) is not None:
            self.on(event)

    # Events.

    async def _on_reply(self, message: BusMessage) -> None:
        number = int(message.subject.rpartition(".")[2])
        reply: DispatchReply | None = None
        if not message.no_responders:
            try:
                reply = decode(DispatchReply, message.payload)
            except DecodeError as error:
                logger.error("an answer of a worker cannot be read: %s", error.message)
        self.on(DispatchesAnswered(number, reply))

    async def _on_reported(self, message: BusMessage) -> None:
        try:
            told = decode(RequestEvents, message.payload)
        except DecodeError as error:
            logger.error("events of a worker cannot be read: %s", error.message)
            return
        self.on(RequestsReported(told.worker, told.boot_id, told.events))

    async def _on_part(self, message: BusMessage) -> None:
        self._when_sure(lambda: self._lists.on_message(message))

    # Time.

    async def _tend_lists(self) -> None:
        await asyncio.sleep(TICK_S)
        while not self._lists.idle:
            self._when_sure(self._lists.tick)
            await asyncio.sleep(TICK_S)

    def _set_timer(self) -> None:
        """One that is too early does no harm: it is not put off at each event."""
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
            self._tasks.start(self._hear_first())
        else:
            self.on(TimePassed())

    async def _hear_first(self) -> None:
        """Answers of workers may wait unread: after a message there and back they have been heard,
        and no client is told that it waits after it was told the end."""
        await self._link.check()
        self.on(TimePassed())
