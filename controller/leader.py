"""What a controller does while it leads: it carries out what the machine says, and tells it what
happened."""

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable

from controller.leadership import Leadership
from controller.lifecycle import (
    AnswerQuery,
    AttachToList,
    CancelList,
    DispatchesAnswered,
    Event,
    FailList,
    Finish,
    GiveOrder,
    Instruction,
    LinkRestored,
    Log,
    RequestsReported,
    SendDispatches,
    ServeList,
    TellClient,
    TimePassed,
)
from controller.link import Link
from controller.lists import TICK_S, ListRunner
from controller.request_machine import RequestMachine
from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.changes import Changes
from shared.errors import BusError, DecodeError
from shared.ids import ControllerId, WorkerId
from shared.messages.codec import decode, encode
from shared.messages.control import ControlReply
from shared.messages.dispatch import DispatchReply
from shared.messages.events import RequestEvents
from shared.messages.stream import StreamError
from shared.messages.stream import encode as encode_stream
from shared.tasks import Tasks

logger = logging.getLogger(__name__)

_ANSWER_S = 2.0
_AGAIN_S = 0.1
_UNSURE_S = 5.0
"""For so long a leader that was away waits for JetStream; another one that led would be heard by then."""


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
        leadership: Leadership,
        link: Link,
    ) -> None:
        self.machine = machine
        self._bus = bus
        self._controller = controller
        self._leadership = leadership
        self._link = link
        self._lapses = link.lapses
        self._held: list[Event] = []
        self._open = asyncio.Event()
        self._open.set()
        self._replies, self._inbox = bus.new_inbox(), bus.new_inbox()
        self._lists = ListRunner(
            self.on,
            machine.find,
            machine.capacity,
            self._put,
            self._inbox,
            bus.max_payload,
            lambda: bus.connections,
        )
        self._subscriptions: list[Subscription] = []
        self._tasks = Tasks()
        self._outbox: deque[tuple[str, bytes, str]] = deque()
        self._filled = asyncio.Event()
        self._changes = Changes()
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    async def open(self) -> None:
        """Hear what workers answer and tell."""
        bus = self._bus
        self._subscriptions = [
            await bus.subscribe(f"{self._replies}.*", self._on_reply),
            await bus.subscribe(f"{self._inbox}.>", self._lists.on_message),
            await bus.subscribe(subjects.request_event(self._controller), self._on_reported),
        ]
        self._tasks.start(self._send_all())

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
        if not self._leadership.leads:
            return
        if self._was_away or not self._open.is_set():
            self._held.append(event)
            if self._open.is_set():
                self._open.clear()
                self._tasks.start(self._make_sure())
            return
        for instruction in self.machine.on(event, time.monotonic()):
            self._carry_out(instruction)
        self._set_timer()
        self._changes.notify()

    @property
    def _was_away(self) -> bool:
        return self._link.away or self._link.lapses != self._lapses

    async def _make_sure(self) -> None:
        """Go on if nobody else leads; then with what may have been missed."""
        until = time.monotonic() + _UNSURE_S
        while self._leadership.leads and self._held:
            came_back = await self._link.check()
            if came_back and (await self._is_confirmed() or time.monotonic() >= until):
                self._lapses = self._link.lapses
                self._open.set()
                held, self._held = self._held, []
                for event in [*held, LinkRestored()]:
                    self.on(event)
                return
            await asyncio.sleep(_AGAIN_S)
        self._held.clear()

    async def _is_confirmed(self) -> bool:
        with contextlib.suppress(BusError, TimeoutError):
            return await self._leadership.confirm()
        return False

    async def until_idle(self) -> None:
        """Return once every request has ended."""
        await self._changes.wait_until(lambda: not self.machine.active or self._closed)

    async def until_nothing_is_offered(self) -> None:
        """Return once no worker has yet to answer whether it takes a request."""
        await self._changes.wait_until(lambda: not self.machine.offered or self._closed)

    def fail_all(self, error: StreamError) -> None:
        """End every request, and make the workers drop what they do for it."""
        self.on(Finish(None, error))

    async def flush(self) -> None:
        """Return once all that was said before is on its way."""
        await self._changes.wait_until(lambda: not self._outbox or self._closed)
        with contextlib.suppress(BusError):
            await self._bus.flush()

    # Instructions.

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case SendDispatches(worker, number, payload):
                self._put(subjects.worker_infer(worker), payload, f"{self._replies}.{number}")
            case TellClient(inboxes, message, multiplex):
                body = encode_stream(message, multiplex=multiplex)
                for inbox in inboxes:
                    self._put(inbox, body)
            case GiveOrder(worker, order, None):
                self._put(subjects.worker_control(worker, order.verb), encode(order))
            case GiveOrder(worker, order, then) if then is not None:
                subject = subjects.worker_control(worker, order.verb)
                self._tasks.start(self._ask(worker, subject, encode(order), then))
            case AnswerQuery(reply, _, state):
                self._put(reply, encode(state))
            case Log(level, text, fields):
                logger.log(level, text, extra=dict(fields))
            case ServeList(request):
                if self._lists.idle:
                    self._tasks.start(self._tend_lists())
                self._lists.serve(request)
            case AttachToList(request, inbox):
                self._lists.attach(request, inbox)
            case CancelList(request):
                self._lists.cancel(request)
            case FailList(request, error):
                self._lists.fail(request, error)

    def _put(self, subject: str, payload: bytes, reply: str = "") -> None:
        self._outbox.append((subject, payload, reply))
        self._filled.set()

    async def _send_all(self) -> None:
        """Publish all, in this order, while the term goes on."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._outbox:
                await self._bus.wait_connected()
                if self._was_away:
                    self.on(TimePassed())  # which waits until nobody else leads
                await self._open.wait()
                if not self._leadership.leads:
                    self._outbox.clear()
                    break
                subject, payload, reply = self._outbox.popleft()
                try:
                    await self._bus.publish(subject, payload, reply=reply)
                except BusError as error:
                    logger.warning("a message on %s was lost: %s", subject, error.message)
            self._changes.notify()

    async def _ask(
        self,
        worker: WorkerId,
        subject: str,
        payload: bytes,
        then: Callable[[ControlReply | None], Event],
    ) -> None:
        reply: ControlReply | None = None
        try:
            if self._was_away or not self._bus.connected:  # else it would go out later
                raise BusError("this process was away")
            answer = await self._bus.request(subject, payload, timeout_s=_ANSWER_S)
            reply = decode(ControlReply, answer.payload)
        except (BusError, DecodeError) as error:
            logger.debug("worker %s does not answer: %s", worker, error.message)
        if reply is not None and reply.code == "stale_term":
            self._leadership.on_refused()
        self.on(then(reply))

    # Events.

    async def _on_reply(self, message: Message) -> None:
        number = int(message.subject.rpartition(".")[2])
        reply: DispatchReply | None = None
        if not message.no_responders:
            try:
                reply = decode(DispatchReply, message.payload)
            except DecodeError as error:
                logger.error("an answer of a worker cannot be read: %s", error.message)
        self.on(DispatchesAnswered(number, reply))

    async def _on_reported(self, message: Message) -> None:
        try:
            told = decode(RequestEvents, message.payload)
        except DecodeError as error:
            logger.error("events of a worker cannot be read: %s", error.message)
            return
        self.on(RequestsReported(told.worker, told.boot_id, told.events))

    # Time.

    async def _tend_lists(self) -> None:
        await asyncio.sleep(TICK_S)
        while not self._lists.idle:
            if self._leadership.leads and not self._was_away:
                self._lists.tick()
            await asyncio.sleep(TICK_S)

    def _set_timer(self) -> None:
        at = self.machine.next_due
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = at
        if at < math.inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, at - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self.on(TimePassed())
