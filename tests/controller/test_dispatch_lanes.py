"""Dispatches on their way: together where they may be, answered one by one."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.dispatch_lanes import Ack, Answer, DispatchLanes
from shared import subjects
from shared.bus import Bus, Message
from shared.errors import RequestTimedOut
from shared.ids import BootId, ClientName, ModelId, RequestId
from shared.messages.codec import decode, encode
from shared.messages.dispatch import Dispatch, DispatchBatch, DispatchReply, DispatchResult, Refusal
from shared.messages.events import WorkerReport
from shared.messages.request import InferenceRequest, Priority
from shared.settings.tree import DispatchSettings
from tests.controller.running import CONTROLLER
from tests.controller.values import ADA, CHAT, DEMO, report

pytestmark = pytest.mark.anyio

WORKER = report("w1", dispatches_per_message=64)
PATIENT_MS = 10_000
HELD = {"min_hold_ms": 300.0, "max_hold_ms": 300.0}


class Worker:
    """Answers each message with `answer` for each of its dispatches, by request id."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.messages: list[list[str]] = []
        self.refusals: dict[str, Refusal] = {}
        self.silent = False

    async def on_dispatch(self, message: Message) -> None:
        batch = decode(DispatchBatch, message.payload)
        self.messages.append([dispatch.request_id for dispatch in batch.dispatches])
        if self.silent:
            return
        results = [
            DispatchResult(
                request_id=one.request_id,
                client=one.client,
                attempt=one.attempt,
                refusal=self.refusals.get(one.request_id),
            )
            for one in batch.dispatches
        ]
        reply = DispatchReply(worker=WORKER.id, boot_id=WORKER.boot_id, results=results)
        await self.bus.publish(message.reply, encode(reply))


@pytest.fixture
async def worker(bus: Bus) -> AsyncIterator[Worker]:
    worker = Worker(bus)
    subscription = await bus.subscribe(subjects.worker_infer(WORKER.id), worker.on_dispatch)
    await bus.flush()
    yield worker
    await subscription.unsubscribe()


async def opened(bus: Bus, **settings: Any) -> DispatchLanes:
    limits = DispatchSettings(**{"ack_timeout_ms": PATIENT_MS, **settings})
    lanes = DispatchLanes(CONTROLLER, limits, bus)
    await lanes.open()
    return lanes


def asking(
    lanes: DispatchLanes,
    name: str,
    *,
    to: WorkerReport = WORKER,
    level: Priority = "medium",
    model: ModelId = DEMO,
    body: bytes = b'{"prompt":"x"}',
) -> "asyncio.Task[Answer]":
    dispatch = Dispatch(
        request_id=RequestId(name), client=ADA, skill=CHAT, model=model, attempt=0,
        inboxes=["_INBOX.x"], seed=1, elapsed_ms=0, request=InferenceRequest(prompt="x"),
    )  # fmt: skip
    return asyncio.create_task(lanes.ask(to, dispatch, body, level=level))


ACK = Ack(0, WORKER.boot_id)


async def test_the_first_goes_alone_and_the_others_together(bus: Bus, worker: Worker) -> None:
    lanes = await opened(bus, **HELD)
    answers = await asyncio.gather(*(asking(lanes, f"r{number}") for number in range(6)))
    assert answers == [ACK] * 6
    assert worker.messages == [["r0"], ["r1", "r2", "r3", "r4", "r5"]]
    assert (lanes.messages, lanes.dispatches) == (2, 6)


async def test_a_burst_takes_few_messages(bus: Bus, worker: Worker) -> None:
    lanes = await opened(bus, **HELD)
    await asyncio.gather(*(asking(lanes, f"r{number}") for number in range(32)))
    assert [len(message) for message in worker.messages] == [1, 16, 15]


async def test_urgent_ones_take_those_that_are_held_with_them(bus: Bus, worker: Worker) -> None:
    lanes = await opened(bus, min_hold_ms=1000, max_hold_ms=1000)
    names: list[tuple[str, Priority]] = [
        ("a", "medium"),
        ("b", "low"),
        ("c", "high"),
        ("d", "high"),
    ]
    await asyncio.gather(*(asking(lanes, name, level=level) for name, level in names))
    assert worker.messages == [["a"], ["b", "c"], ["d"]]


async def test_what_cannot_be_served_together_goes_apart(bus: Bus, worker: Worker) -> None:
    lanes = await opened(bus, **HELD)
    others: list[dict[str, Any]] = [{}, {"model": ModelId("other")}]
    first = [asking(lanes, f"first{number}", **other) for number, other in enumerate(others)]
    rest = [asking(lanes, f"rest{number}", **other) for number, other in enumerate(others * 2)]
    await asyncio.gather(*first, *rest)
    assert sorted(worker.messages[2:]) == [["rest0", "rest2"], ["rest1", "rest3"]]


async def test_a_worker_that_takes_one_at_a_time_gets_one_at_a_time(
    bus: Bus, worker: Worker
) -> None:
    lanes = await opened(bus, **HELD)
    old = report("w1")
    await asyncio.gather(*(asking(lanes, f"r{number}", to=old) for number in range(4)))
    assert worker.messages == [["r0"], ["r1"], ["r2"], ["r3"]]


async def test_one_refusal_is_that_of_one(bus: Bus, worker: Worker) -> None:
    lanes = await opened(bus, **HELD)
    refusal = Refusal(code="context_length_exceeded", message="too long", param="prompt")
    worker.refusals["r2"] = refusal
    answers = await asyncio.gather(*(asking(lanes, f"r{number}") for number in range(4)))
    assert answers == [ACK, ACK, refusal, ACK]


async def test_a_worker_without_room_is_given_a_pause(bus: Bus, worker: Worker) -> None:
    lanes = await opened(bus, min_hold_ms=0, max_hold_ms=0)
    worker.refusals["r0"] = Refusal(code="queue_full", message="no room")
    await asking(lanes, "r0")
    loop = asyncio.get_running_loop()
    refused_at = loop.time()
    urgent, patient = asking(lanes, "urgent", level="high"), asking(lanes, "patient")
    await asyncio.gather(urgent, patient)
    assert worker.messages == [["r0"], ["urgent"], ["patient"]]
    assert loop.time() - refused_at >= 0.015


async def test_large_ones_are_split_by_their_bytes(bus: Bus, worker: Worker) -> None:
    lanes = await opened(bus, **HELD)
    size = bus.max_payload // 4
    body = b'{"prompt":"%s"}' % (b"x" * size)
    answers = await asyncio.gather(*(asking(lanes, f"r{n}", body=body) for n in range(8)))
    assert answers == [ACK] * 8
    assert [len(message) for message in worker.messages] == [1, 3, 3, 1]


async def test_what_was_not_sent_can_be_withdrawn(bus: Bus, worker: Worker) -> None:
    lanes = await opened(bus, **HELD)
    asked = [asking(lanes, f"r{number}") for number in range(3)]
    await asyncio.sleep(0)
    assert not lanes.withdraw((ADA, RequestId("r0")))  # it is on its way
    assert lanes.withdraw((ADA, RequestId("r1")))
    assert not lanes.withdraw((ADA, RequestId("r1")))
    assert not lanes.withdraw((ClientName("bob"), RequestId("r2")))
    assert await asyncio.gather(*asked) == [ACK, None, ACK]
    assert worker.messages == [["r0"], ["r2"]]


async def test_all_that_is_withdrawn_leaves_nothing_to_send(bus: Bus, worker: Worker) -> None:
    lanes = await opened(bus, min_hold_ms=100, max_hold_ms=100)
    asked = [asking(lanes, f"r{number}") for number in range(2)]
    await asyncio.sleep(0)
    lanes.withdraw((ADA, RequestId("r1")))
    await asyncio.gather(*asked)
    await asyncio.sleep(0.15)
    assert lanes.messages == 1


async def test_who_is_not_there_refuses(bus: Bus) -> None:
    lanes = await opened(bus, **HELD)
    answer = await asking(lanes, "r0", to=report("nobody"))
    assert answer == Refusal(code="worker_lost", message="worker nobody is not there")


async def test_silence_is_told_of_each(bus: Bus, worker: Worker) -> None:
    worker.silent = True
    lanes = await opened(bus, ack_timeout_ms=50)
    asked = [asking(lanes, f"r{number}") for number in range(3)]
    for task in asked:
        with pytest.raises(RequestTimedOut, match="worker w1 does not answer"):
            await task


async def test_nobody_waits_for_a_boot_that_is_gone(bus: Bus, worker: Worker) -> None:
    worker.silent = True
    lanes = await opened(bus, **HELD)
    sent, held = asking(lanes, "sent"), asking(lanes, "held")
    other = asking(lanes, "other", to=report("w1", boot="b2"))
    await asyncio.sleep(0.01)
    lanes.on_worker_gone(WORKER.id, WORKER.boot_id)
    with pytest.raises(RequestTimedOut, match="worker w1 is gone"):
        await sent
    assert await held == Refusal(code="worker_lost", message="worker w1 is not there")
    assert not other.done()
    lanes.on_worker_gone(WORKER.id, BootId("b2"))
    with pytest.raises(RequestTimedOut):
        await other


@pytest.mark.parametrize("reply", [b"nonsense", b'{"worker":"w1","boot_id":"b1","results":[]}'])
async def test_a_reply_that_makes_no_sense_refuses_all_of_its_message(
    bus: Bus, reply: bytes
) -> None:
    async def answer(message: Message) -> None:
        await bus.publish(message.reply, reply)

    await bus.subscribe(subjects.worker_infer(WORKER.id), answer)
    lanes = await opened(bus, min_hold_ms=20, max_hold_ms=20)
    for task in [asking(lanes, f"r{number}") for number in range(3)]:
        refusal = await task
        assert isinstance(refusal, Refusal) and refusal.code == "internal_error"
