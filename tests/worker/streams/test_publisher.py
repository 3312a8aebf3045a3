"""What leaves a worker, in which order, and what does not leave it, on a real server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress

import pytest

from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.clock import boottime_s
from shared.codec import decode
from shared.ids import BootId, ClientName, ControllerId
from shared.messages.request_events import RequestCompleted, RequestEvent, RequestEvents
from shared.messages.stream import (
    ChoiceOutput,
    ChunkMessage,
    DoneMessage,
    FailedMessage,
    StatusMessage,
    StreamMessage,
    Timings,
    Usage,
)
from shared.messages.stream import decode as decode_stream
from shared.stream_subscribers import PROBE_INTERVAL_S
from tests.processes import MAX_PAYLOAD_BYTES
from tests.worker.values import CLIENT, MAC, OWNER, active
from worker.link.facts import SequenceOutput
from worker.requests.active_request import ActiveRequest
from worker.requests.isolation import FailureIsolation
from worker.streams.outgoing import OutgoingBatch, OutgoingMessage
from worker.streams.publish_lease import PublishLease
from worker.streams.publisher import SLICE, StreamPublisher
from worker.streams.replay import Replay

pytestmark = pytest.mark.anyio

_LIMIT_S = 20
CheckStreams = Callable[[Iterable[ActiveRequest]], Awaitable[None]]
_LEASE_S = 3.0


class Clock:
    """The machine's, which a test may put forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return boottime_s() + self.ahead_s


class Publishing:
    """A running publisher, and what arrives of what it sends."""

    def __init__(self, bus: Bus, check_streams: CheckStreams) -> None:
        self.clock = Clock()
        self.isolation = FailureIsolation()
        self.missed: asyncio.Queue[str] = asyncio.Queue()
        self.arrived: list[IncomingMessage] = []
        self.lease = PublishLease(_LEASE_S, self.clock)
        self.lease.restore(bus.connections)
        self.publisher = StreamPublisher(
            bus, MAC, BootId("b1"), self.lease,
            check_streams=check_streams, on_missed=self.missed.put_nowait, isolation=self.isolation,
        )  # fmt: skip
        self._bus = bus

    async def inbox(self) -> str:
        """A new one, whose messages arrive here."""
        subject = self._bus.new_inbox()
        await self._bus.subscribe(subject, self._take)
        return subject

    async def say(self, *client_messages: OutgoingMessage) -> None:
        """Send the messages of one step, and return when they have arrived."""
        self.publisher.put(OutgoingBatch(client_messages=list(client_messages)))
        await self.publisher.drain(_LIMIT_S)
        for _ in range(2):  # callbacks of several subscriptions may overtake each other a little
            await self._bus.flush(timeout_s=_LIMIT_S)

    def on(self, inbox: str) -> list[StreamMessage]:
        """What came there so far."""
        return [
            sent
            for message in self.arrived
            if message.subject == inbox
            for sent in decode_stream(message.payload)
        ]

    def probes(self) -> list[bool]:
        """Of each message that came, whether it was a probe."""
        return [bool(message.reply) for message in self.arrived]

    async def _take(self, message: IncomingMessage) -> None:
        self.arrived.append(message)


async def heard_in_order(bus: Bus) -> list[str]:
    """The inboxes to which something was sent, as it arrives."""
    order: list[str] = []

    async def note(message: IncomingMessage) -> None:
        order.append(message.subject)

    await bus.subscribe("mlx.event.inbox.>", note)
    return order


async def nothing_to_drop(_: Iterable[ActiveRequest]) -> None:
    pass


@asynccontextmanager
async def publishing(
    bus: Bus, check_streams: CheckStreams = nothing_to_drop
) -> AsyncIterator[Publishing]:
    made = Publishing(bus, check_streams)
    running = asyncio.create_task(made.publisher.run())
    try:
        yield made
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def said(request: ActiveRequest, *, index: int = 0, size: int = 1) -> OutgoingMessage:
    """A chunk of one token with a text of that size."""
    output = ChoiceOutput(0, index, [7], "x" * size)
    message = ChunkMessage(request.dispatch.request_id, 0, MAC, output)
    return OutgoingMessage(request, message, tuple(request.inboxes))


def whole(request: ActiveRequest, *, size: int = 1) -> OutgoingMessage:
    """The end of a request without streaming."""
    output = ChoiceOutput(0, 0, [7], "x" * size, finish_reason="stop")
    message = DoneMessage(
        request.dispatch.request_id, 0, MAC, Usage(1, 0, 1), Timings(0, 0, 0, 0), (output,)
    )
    return OutgoingMessage(request, message, tuple(request.inboxes))


# The order.


async def test_the_owners_hear_of_a_step_in_one_message_each_before_any_client(bus: Bus) -> None:
    async with publishing(bus) as here:
        order: list[str] = []

        async def note(message: IncomingMessage) -> None:
            order.append(message.subject)
            if message.subject == subjects.request_event(OWNER, MAC):
                body = decode(RequestEvents, message.payload)
                assert (body.worker, body.boot_id, len(body.events)) == (MAC, "b1", 2)

        # One subscription: only within one is the order of callbacks certain.
        await bus.subscribe("mlx.event.>", note)
        requests = [active(name, f"mlx.event.inbox.{name}") for name in ("r1", "r2")]
        events: list[tuple[ActiveRequest, RequestEvent]] = [
            (r, RequestCompleted(request_id=r.dispatch.request_id, client=CLIENT, attempt=0))
            for r in requests
        ]
        here.publisher.put(OutgoingBatch(events, [said(request) for request in requests]))
        await here.publisher.drain(_LIMIT_S)
        await bus.flush(timeout_s=_LIMIT_S)
        assert order == [
            subjects.request_event(OWNER, MAC),
            "mlx.event.inbox.r1",
            "mlx.event.inbox.r2",
        ]


async def test_a_leader_that_claimed_meanwhile_hears_of_what_was_not_published(bus: Bus) -> None:
    may_go_out, heard = asyncio.Event(), asyncio.Queue[str]()

    async def hold(_: Iterable[ActiveRequest]) -> None:
        await may_go_out.wait()

    async def note(message: IncomingMessage) -> None:
        heard.put_nowait(message.subject)

    await bus.subscribe("mlx.event.request.>", note)
    async with publishing(bus, hold) as here:
        here.clock.ahead_s = _LEASE_S + 1  # it does not know whose streams these are now
        request = active("r", await here.inbox())
        event = RequestCompleted(request_id=request.dispatch.request_id, client=CLIENT, attempt=0)
        here.publisher.put(OutgoingBatch([(request, event)], [said(request)]))
        request.owner = ControllerId("heir")
        may_go_out.set()
        await here.publisher.drain(_LIMIT_S)
        assert await heard.get() == subjects.request_event(ControllerId("heir"), MAC)


async def test_what_is_sent_again_lets_new_tokens_go_first(bus: Bus) -> None:
    order = await heard_in_order(bus)
    async with publishing(bus) as here:
        long = active("long", "mlx.event.inbox.long", client=ClientName("eve"))
        for index in range(10 * SLICE):
            long.advance(long.choices[0], SequenceOutput(1, index, [7], "x"))
        for number in range(20):
            here.publisher.put(Replay(long, f"mlx.event.inbox.again.{number}"))
        for name in ("r1", "r2", "r3"):
            here.publisher.put(
                OutgoingBatch(client_messages=[said(active(name, f"mlx.event.inbox.{name}"))])
            )
        await here.publisher.drain(_LIMIT_S)
        await bus.flush(timeout_s=_LIMIT_S)
    assert len(order) == 20 * (10 * SLICE + 1) + 3
    assert order[:3] == [f"mlx.event.inbox.{name}" for name in ("r1", "r2", "r3")]


async def test_new_tokens_without_a_pause_do_not_hold_up_what_is_sent_again(bus: Bus) -> None:
    order = await heard_in_order(bus)
    async with publishing(bus) as here:
        request = active("r", "mlx.event.inbox.live")
        request.advance(request.choices[0], SequenceOutput(1, 0, [7], "x"))
        here.publisher.put(Replay(request, "mlx.event.inbox.again"))
        for index in range(500):
            here.publisher.put(OutgoingBatch(client_messages=[said(request, index=index)]))
        await here.publisher.drain(_LIMIT_S)
        await bus.flush(timeout_s=_LIMIT_S)
    assert 0 < order.index("mlx.event.inbox.again") < 100


# What is too large.


async def test_an_answer_too_large_for_a_message_is_an_error_and_the_steps_others_go_out(
    bus: Bus,
) -> None:
    async with publishing(bus) as here:
        inboxes = [await here.inbox() for _ in range(3)]
        before, large, after = (
            active(f"r{place}", inbox, stream=False) for place, inbox in enumerate(inboxes)
        )
        await here.say(whole(before), whole(large, size=MAX_PAYLOAD_BYTES), whole(after))
        (end,) = here.on(inboxes[1])
        assert isinstance(end, FailedMessage)
        assert (end.error.code, end.error.retryable) == ("answer_too_large", False)
        assert [type(m) for i in (0, 2) for m in here.on(inboxes[i])] == [DoneMessage, DoneMessage]
        assert large.end == end, "who asks for it again gets the same end"


async def test_multiplexed_a_message_too_large_spoils_only_its_own_stream(bus: Bus) -> None:
    async with publishing(bus) as here:
        inbox = await here.inbox()
        before, large, after = (
            active(name, inbox, multiplex=True) for name in ("before", "large", "after")
        )
        await here.say(said(before), whole(large, size=MAX_PAYLOAD_BYTES), said(after))
        assert [(m.request_id, type(m)) for m in here.on(inbox)] == [
            ("before", ChunkMessage), ("large", FailedMessage), ("after", ChunkMessage),
        ]  # fmt: skip


async def test_multiplexed_messages_that_are_too_large_only_together_go_out_apart(
    bus: Bus,
) -> None:
    async with publishing(bus) as here:
        inbox = await here.inbox()
        requests = [active(str(place), inbox, multiplex=True) for place in range(3)]
        await here.say(*(said(request, size=MAX_PAYLOAD_BYTES // 2) for request in requests))
        assert [type(message) for message in here.on(inbox)] == [ChunkMessage] * 3
        await here.say(*(said(request) for request in requests))
        assert len(here.arrived) == 4, "small ones go together"


# Probes.


async def test_now_and_then_a_chunk_or_status_is_a_probe(bus: Bus) -> None:
    async with publishing(bus) as here:
        request = active("r", await here.inbox())
        await here.say(said(request))
        here.clock.ahead_s += PROBE_INTERVAL_S
        await here.say(said(request, index=1), said(request, index=2))
        here.clock.ahead_s += PROBE_INTERVAL_S
        status = StatusMessage(request.dispatch.request_id, 0, MAC, "running")
        await here.say(OutgoingMessage(request, status, tuple(request.inboxes)))
        assert here.probes() == [False, True, False, True]
        assert here.missed.empty()


async def test_an_end_is_no_probe_and_what_does_not_stream_is_never_probed(bus: Bus) -> None:
    async with publishing(bus) as here:
        streams = active("r1", await here.inbox())
        quiet = active("r2", await here.inbox(), stream=False)
        here.clock.ahead_s += PROBE_INTERVAL_S
        await here.say(whole(streams), whole(quiet), said(quiet))
        assert here.probes() == [False] * 3


async def test_a_probe_that_nobody_hears_tells_which_inbox_is_left(bus: Bus) -> None:
    async with publishing(bus) as here:
        gone = bus.new_inbox()
        request = active("r", gone, await here.inbox())
        await here.say(said(request))
        assert here.missed.empty()
        here.clock.ahead_s += PROBE_INTERVAL_S
        await here.say(said(request, index=1))
        assert await asyncio.wait_for(here.missed.get(), _LIMIT_S) == gone
        assert here.missed.empty()


async def test_multiplexed_streams_of_one_inbox_are_probed_together(bus: Bus) -> None:
    async with publishing(bus) as here:
        inbox = await here.inbox()
        requests = [active(name, inbox, multiplex=True) for name in ("r1", "r2")]
        here.clock.ahead_s += PROBE_INTERVAL_S
        for index in range(2):
            await here.say(*(said(request, index=index) for request in requests))
        assert here.probes() == [True, False]


# The lease.


async def test_after_a_lapse_streams_are_checked_before_anything_goes_out(bus: Bus) -> None:
    checks: list[int] = []
    lost, ours = active("lost"), active("ours")

    async def check(unsent: Iterable[ActiveRequest]) -> None:
        assert set(unsent) == {lost, ours}
        checks.append(len(here.arrived))
        lost.fenced = True

    async with publishing(bus, check) as here:
        lost.inboxes.add(theirs := await here.inbox(), here.clock())
        ours.inboxes.add(mine := await here.inbox(), here.clock())
        here.clock.ahead_s += 2 * _LEASE_S
        await here.say(said(lost), said(ours))
        assert checks == [0]
        assert (len(here.on(theirs)), len(here.on(mine))) == (0, 1)
        await here.say(said(lost, index=1), said(ours, index=1))
        assert checks == [0], "once is enough"
        assert (len(here.on(theirs)), len(here.on(mine))) == (0, 2)


async def test_for_a_while_after_a_lapse_nobody_is_missed(bus: Bus) -> None:
    async with publishing(bus) as here:
        request = active("r", gone := bus.new_inbox())
        here.clock.ahead_s += 2 * _LEASE_S
        await here.say(said(request))
        here.clock.ahead_s += 0.9 * _LEASE_S
        await here.say(said(request, index=1))
        assert here.missed.empty(), "clients may be reconnecting too"
        here.lease.renew(here.clock(), bus.connections)
        here.clock.ahead_s += 0.9 * _LEASE_S
        await here.say(said(request, index=2))
        assert await asyncio.wait_for(here.missed.get(), _LIMIT_S) == gone


# What is sent again, and what comes meanwhile.


def _emit(request: ActiveRequest, index: int, *, is_last: bool = False) -> OutgoingBatch:
    """Generate one token of a request; return what is published for it."""
    output = SequenceOutput(1, index, [7], "x", finish_reason="length" if is_last else None)
    messages = request.advance(request.choices[0], output)
    return OutgoingBatch(
        client_messages=[OutgoingMessage.to_all(request, message) for message in messages]
    )


@pytest.mark.parametrize("more", [1, 10, 3 * SLICE])
@pytest.mark.parametrize("known", [1, SLICE, SLICE + 3, 5 * SLICE])
async def test_who_listens_late_gets_the_whole_stream_and_its_end_last(
    bus: Bus, known: int, more: int
) -> None:
    """`known` tokens are there; `more` come while those are sent again."""
    async with publishing(bus) as here:
        inbox, late = await here.inbox(), await here.inbox()
        request = active("r", inbox)
        for index in range(known):
            here.publisher.put(_emit(request, index))
        request.inboxes.add(late, boottime_s())
        here.publisher.put(Replay(request, late))
        for index in range(known, known + more):
            here.publisher.put(_emit(request, index, is_last=index == known + more - 1))
            if index % 2:
                await asyncio.sleep(0)
        await here.publisher.drain(_LIMIT_S)
        for _ in range(2):
            await bus.flush(timeout_s=_LIMIT_S)
        for listener in (inbox, late):
            *stream, end = here.on(listener)
            assert isinstance(end, DoneMessage)
            assert not any(isinstance(message, DoneMessage) for message in stream)
            outputs = [m.output for m in stream if isinstance(m, ChunkMessage)] + [*end.outputs]
            indexes = dict.fromkeys(output.index for output in outputs)
            assert list(indexes) == list(range(known + more)), "in order, some of them twice"


async def test_who_listens_after_the_end_gets_it_too(bus: Bus) -> None:
    async with publishing(bus) as here:
        late = await here.inbox()
        request = active("r", await here.inbox())
        batches = [_emit(request, 0), _emit(request, 1, is_last=True)]
        here.publisher.put(Replay(request, late))  # its end is not published yet
        for batch in batches:
            here.publisher.put(batch)
        await here.publisher.drain(_LIMIT_S)
        for _ in range(2):
            await bus.flush(timeout_s=_LIMIT_S)
        *stream, end = here.on(late)
        assert isinstance(end, DoneMessage)
        assert [each.output.index for each in stream if isinstance(each, ChunkMessage)] == [0, 1]


async def test_who_asks_for_the_only_choice_again_gets_the_end_last_too(bus: Bus) -> None:
    async with publishing(bus) as here:
        inbox = await here.inbox()
        request = active("r", inbox)
        for index in range(3):
            _emit(request, index)  # these are lost on their way
        here.publisher.put(Replay(request, inbox, choice=0, index=0))
        here.publisher.put(_emit(request, 3, is_last=True))
        await here.publisher.drain(_LIMIT_S)
        for _ in range(2):
            await bus.flush(timeout_s=_LIMIT_S)
        *stream, end = here.on(inbox)
        assert isinstance(end, DoneMessage)
        assert not any(isinstance(each, DoneMessage) for each in stream)
        chunks = [each for each in stream if isinstance(each, ChunkMessage)]
        assert [each.output.index for each in chunks] == [0, 1, 2, 3]
