"""What somebody says who may not say it, or what is not true: it is refused, counted and named, and
the cluster serves."""

import contextlib
import json
from typing import Any

import pytest

from shared import subjects
from shared.bus import Bus, IncomingMessage, LeaseStore
from shared.client import Cluster
from shared.codec import encode
from shared.errors import WriteConflict
from shared.ids import BootId, ClientName, ControllerId, WorkerId
from shared.messages.controller_report import ControllerReport
from shared.messages.dispatch import DispatchReply
from shared.messages.events import ControllerEvent, KeptPrefixes, WorkerEvent
from shared.messages.health import ClusterHealth, ControllerHealth
from shared.messages.request_events import AttemptFailed, RequestEvents
from shared.settings.nats import NatsSettings
from tests.controller.pair import FIRST, SECOND, Pair, running_pair
from tests.controller.running import Running
from tests.controller.simulated_worker import WAIT_S, SimulatedWorker, keep_silent
from tests.controller.values import report

pytestmark = pytest.mark.anyio

HUGE = (2**31 - 1, 2**31, 2**31 + 1, 2**62, 2**63 - 1, 2**63)
LIAR = ControllerId("c-2")


async def health(bus: Bus) -> ClusterHealth:
    return await Cluster(bus, ClientName("local")).health()


async def serves(cluster: Running, worker: SimulatedWorker, request_id: str) -> None:
    """A request gets its answer, from the worker that the leader has claimed."""
    await cluster.until(lambda: cluster.serves)
    await cluster.until_claimed(worker)
    inbox = await cluster.ask(request_id=request_id)
    await worker.finish(await worker.next_dispatch())
    await inbox.done()


def with_term(event: WorkerEvent | ControllerEvent, term: int, **fields: object) -> bytes:
    """An event that has a term which a message of ours may not have."""
    body = json.loads(encode(event))
    body["worker" if isinstance(event, WorkerEvent) else "controller"] |= {"term": term, **fields}
    return json.dumps(body).encode()


def heartbeat_of(controller: ControllerId, **fields: Any) -> ControllerEvent:
    told = ControllerReport(
        id=controller, boot_id=BootId("b9"), version="1", state="ready", **fields
    )
    return ControllerEvent(type="heartbeat", controller=told)


async def overwrite(store: LeaseStore, record: bytes) -> None:
    """Write the leader's record, whatever the leader writes meanwhile."""
    while True:
        stored = await store.read(timeout_s=WAIT_S)
        with contextlib.suppress(WriteConflict):
            await store.write(record, after=stored.sequence, ttl_s=60, timeout_s=WAIT_S)
            return


# Messages that name another sender.


def _forged(kind: str, request_id: str) -> tuple[str, bytes]:
    """What the worker w2 says of w1, on its own subject, and a worker of a controller."""
    own = subjects.worker_event(WorkerId("w2"))
    match kind:
        case "left":
            return own, encode(WorkerEvent(type="left", worker=report("w1")))
        case "joined":
            return own, encode(WorkerEvent(type="joined", worker=report("ghost")))
        case "kept":
            kept = KeptPrefixes(worker=WorkerId("w1"), boot_id=BootId("b1"), number=9, whole=True)
            return subjects.prefix_event(WorkerId("w2")), encode(kept)
        case "failed":
            failed = AttemptFailed.model_validate(
                {"request_id": request_id, "client": "local", "attempt": 1,
                 "code": "request_failed", "message": "it says so"}
            )  # fmt: skip
            events = RequestEvents(worker=WorkerId("w1"), boot_id=BootId("b1"), events=[failed])
            return subjects.request_event(FIRST, WorkerId("w2")), encode(events)
        case _:
            return subjects.controller_event(LIAR), encode(heartbeat_of(FIRST, leader=True))


@pytest.mark.parametrize("kind", ["left", "joined", "kept", "failed", "leads"])
async def test_an_event_in_the_name_of_another_one_is_refused_and_counted(
    cluster: Running, bus: Bus, kind: str
) -> None:
    worker = await cluster.worker("w1")
    inbox = await cluster.begin(request_id="r")
    dispatch = await worker.next_dispatch()
    await bus.publish(*_forged(kind, "r"))
    refused = cluster.controller._refused
    await cluster.until(lambda: refused.counts["wrong_sender"] == 1)
    told = await health(bus)
    assert [each.id for each in told.workers] == ["w1"]
    assert [each.id for each in told.controllers] == [cluster.controller.id]
    await worker.finish(dispatch)
    await inbox.done()


@pytest.mark.parametrize("subject", ["mlx.event.worker.a$b", "mlx.event.kept.a$b"])
async def test_a_subject_with_a_token_that_is_no_name_is_refused_and_counted(
    cluster: Running, bus: Bus, subject: str
) -> None:
    await bus.publish(subject, encode(WorkerEvent(type="joined", worker=report("w1"))))
    refused = cluster.controller._refused
    await cluster.until(lambda: refused.counts["invalid_subject"] == 1)
    assert (await health(bus)).workers == []


@pytest.mark.parametrize(("name", "boot"), [("w2", "b1"), ("w1", "b2")])
async def test_nobody_answers_a_dispatch_but_the_boot_that_was_asked(
    cluster: Running, bus: Bus, name: str, boot: str
) -> None:
    worker = await cluster.worker("w1")
    worker.answer = keep_silent
    replies: list[str] = []

    async def note(message: IncomingMessage) -> None:
        replies.append(message.reply)

    await bus.subscribe(subjects.worker_infer(worker.id), note)
    inbox = await cluster.ask(request_id="r")
    dispatch = await worker.next_dispatch()
    await cluster.until(lambda: bool(replies))
    forged = DispatchReply(worker=WorkerId(name), boot_id=BootId(boot), results=[])
    await bus.publish(replies[0], encode(forged))
    refused = cluster.controller._refused
    await cluster.until(lambda: refused.counts["wrong_sender"] == 1)
    await worker.acknowledge_late(dispatch)
    await worker.finish(dispatch)
    await inbox.done()
    assert worker.unread == (0, 0)


async def test_one_bad_answer_of_a_controller_does_not_void_the_others(
    pair_: Pair, bus: Bus
) -> None:
    ghost = ControllerHealth(ready=True, controller=heartbeat_of(ControllerId("c-0")).controller)
    second = pair_.second.controller.report().model_copy(update={"leader": True})
    twice = ControllerHealth(ready=True, controller=second)

    async def answer(message: IncomingMessage) -> None:
        for payload in (b"[]", b"\xff", encode(ghost)):
            await bus.publish(message.reply, payload)
        await pair_.second.settle()
        await bus.publish(message.reply, encode(twice))

    await bus.subscribe(subjects.HEALTH_CONTROLLERS, answer)
    await bus.flush()
    reports = await pair_.first.controller._peers.query_all()
    assert {each.id: each.leader for each in reports} == {FIRST: True, SECOND: False}
    assert pair_.first.controller._refused.counts["undecodable"] == 2


# Terms.


@pytest.fixture(name="pair_")
async def _pair(nats_settings: NatsSettings, bus: Bus) -> Any:
    async with running_pair(nats_settings, bus) as pair:
        yield pair


@pytest.mark.parametrize("term", [50, *HUGE])
async def test_a_term_that_is_heard_moves_nothing(pair_: Pair, bus: Bus, term: int) -> None:
    worker = await pair_.worker("w1")
    begun = pair_.first.machine.term
    for leads in (False, True):
        event = heartbeat_of(LIAR)
        await bus.publish(subjects.controller_event(LIAR), with_term(event, term, leader=leads))
    told = WorkerEvent(type="heartbeat", worker=report("w1"))
    await bus.publish(subjects.worker_event(worker.id), with_term(told, term))
    await bus.flush()
    await serves(pair_.first, worker, "r")
    assert (pair_.first.machine.term, pair_.second.leads) == (begun, False)
    await pair_.first.leave()
    await serves(pair_.second, worker, "s")
    assert pair_.second.machine.term == begun + 1


@pytest.mark.parametrize("term", [50, *HUGE])
async def test_a_forged_record_is_overtaken_or_overwritten(
    nats_settings: NatsSettings, bus: Bus, term: int
) -> None:
    store = LeaseStore(bus, subjects.LEADER_BUCKET, subjects.LEADER_KEY)
    async with running_pair(nats_settings, bus) as pair:
        worker = await pair.worker("w1")
        forged = json.dumps({"controller": "c-9", "boot_id": "b", "term": term}).encode()
        await overwrite(store, forged)
        await worker.vanish()
    async with running_pair(nats_settings, bus) as pair:  # all were started again
        leader = pair.first if pair.first.serves else pair.second
        await serves(leader, await leader.worker("w1", boot="b2"), "r")
        is_read = term < 2**30
        assert (leader.machine.term > term) == is_read and leader.machine.term <= 2**30
        assert (await health(bus)).status == "ready"


async def test_a_worker_that_refuses_alone_is_left_out_and_named_until_it_restarts(
    cluster: Running, bus: Bus
) -> None:
    term = cluster.machine.term
    liar = SimulatedWorker(bus, "w0")
    liar.claim.accept(term + 50, ControllerId("c-9"), BootId("b"))
    honest = await cluster.worker("w1")
    await liar.join()
    await cluster.until(lambda: bool(cluster.controller._registry.refused_terms))
    for _ in range(3):
        await liar.say("heartbeat")
    told = await health(bus)
    assert [(each.id, each.term) for each in told.unclaimed] == [("w0", term + 50)]
    assert told.status == "degraded"
    await serves(cluster, honest, "r")
    assert cluster.machine.term == term
    await liar.vanish()
    await cluster.worker("w0", boot="b2")
    assert (await health(bus)).unclaimed == []


async def test_where_the_record_is_lost_the_leader_steps_above_what_most_workers_refuse(
    cluster: Running, bus: Bus
) -> None:
    before = cluster.machine.term
    for number, term in enumerate((before + 7, before + 9, 2**31)):
        worker = SimulatedWorker(bus, f"w{number}")
        worker.claim.accept(term, ControllerId("c-9"), BootId("b"))
        await worker.join()
        if term == before + 9:
            served = worker
    await cluster.until(lambda: cluster.serves and cluster.machine.term == before + 10)
    await cluster.until_claimed(served)
    assert cluster.controller._leadership.leads
    assert cluster.controller.report().term == before + 10


@pytest.mark.parametrize("term", HUGE)
async def test_one_worker_that_lies_brings_no_term_near_the_bound(
    cluster: Running, bus: Bus, term: int
) -> None:
    """It is the only one; an honest one is claimed beside it, whatever came before."""
    liar = SimulatedWorker(bus, "w0")
    liar.claim.term = term
    liar.claim.controller = ControllerId("c-9")
    before = cluster.machine.term
    if term <= 2**31:
        await liar.join()
        await cluster.until(lambda: bool(cluster.controller._registry.refused_terms))
        assert (await health(bus)).status == "unavailable"
    await serves(cluster, await cluster.worker("w1"), "r")
    assert cluster.machine.term == before
