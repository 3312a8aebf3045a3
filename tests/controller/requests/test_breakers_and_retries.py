"""Workers that fail are left alone for a while; what they failed is tried again after a pause."""

import time

import pytest

from shared.bus import Bus
from shared.settings.nats import NatsSettings
from tests.controller.running import Running
from tests.controller.simulated_worker import SimulatedWorker, keep_silent, refuse
from tests.controller.waiting import (
    Start,
    ask,
    ask_and_wait,
    breaker,
    hear_cancelled,
    hear_queued,
    request_in,
    runs,
    starter,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def start(nats_settings: NatsSettings, bus: Bus) -> Start:
    return starter(nats_settings, bus)


# Breakers.


async def _fail_by_silence(worker: SimulatedWorker) -> None:
    await worker.next_dispatch()
    await worker.next_cancel()


async def _fail_by_crash(worker: SimulatedWorker) -> None:
    dispatch = await worker.next_dispatch()
    await worker.fail(dispatch, terminal_sent=False, code="engine_crashed", suspect=True)


@pytest.mark.parametrize("how", ["silence", "crash"])
async def test_a_worker_that_fails_often_is_left_alone(start: Start, how: str) -> None:
    """What fails within a tenth of a second would be one event: acks and retries take longer."""
    async with start(
        dispatch={"ack_timeout_ms": 1000 if how == "silence" else 10_000},
        retry={"initial_delay_ms": 150, "jitter": 0},
        circuit_breaker={"failure_threshold": 2, "recovery_timeout_ms": 60_000},
    ) as cluster:
        bad = await cluster.worker("w1")
        good = await cluster.worker("w2", active_requests=5)
        if how == "silence":
            bad.answer = keep_silent
        for request_id in ("r1", "r2"):
            await ask(cluster, request_id)
            await (_fail_by_silence if how == "silence" else _fail_by_crash)(bad)
            dispatch = await good.next_dispatch()
            assert dispatch.request_id == request_id
            assert dispatch.attempt == cluster.first_attempt + 1
        assert breaker(cluster, "w1").state(time.monotonic()) == "open"
        await ask(cluster, "r3")
        dispatch = await good.next_dispatch()
        assert (dispatch.request_id, dispatch.attempt) == ("r3", cluster.first_attempt)
        assert bad.unread == (0, 0)


@pytest.mark.parametrize("code", ["queue_full", "invalid_request", "internal_error"])
async def test_refusals_open_no_breaker(start: Start, code: str) -> None:
    """Also not what a worker says of one request that it could not process: its client could send
    it to all workers."""
    async with start(circuit_breaker={"failure_threshold": 1}) as cluster:
        worker = await cluster.worker("w1")
        worker.answer = refuse(code)
        if code == "queue_full":
            await ask_and_wait(cluster)
        else:
            inbox = await ask(cluster)
            assert (await inbox.end()).error.code == code
        assert breaker(cluster, "w1").state(time.monotonic()) == "closed"


BREAKS_AT_ONCE = {
    "retry": {"enabled": False},
    "circuit_breaker": {
        "failure_threshold": 1,
        "recovery_timeout_ms": 60_000,
        "half_open_success_threshold": 2,
    },
}


async def _opened(cluster: Running) -> SimulatedWorker:
    """A worker whose breaker opened at its first failure, and that works again."""
    worker = await cluster.worker("w1")
    inbox = await ask(cluster, "lost")
    await _fail_by_crash(worker)
    assert (await inbox.end()).error.code == "engine_crashed"
    return worker


async def _let_recover(cluster: Running, worker: SimulatedWorker) -> None:
    """As if its time were over when it is heard next."""
    assert breaker(cluster, "w1").state(time.monotonic()) == "open"
    breaker(cluster, "w1")._reopens_at = 0.0
    await worker.say("heartbeat")


async def test_while_all_breakers_are_open_requests_wait_and_go_one_by_one_then(
    start: Start,
) -> None:
    async with start(**BREAKS_AT_ONCE) as cluster:
        worker = await _opened(cluster)
        inboxes = {name: await ask_and_wait(cluster, name) for name in ("r1", "r2", "r3")}
        assert (await hear_queued(inboxes["r1"])).reason == "circuit_open"
        assert worker.unread == (0, 0)
        await _let_recover(cluster, worker)
        first = await worker.next_dispatch()
        assert first.request_id == "r1"
        for _ in range(2):  # one may have come before
            await hear_queued(inboxes["r2"])
        assert worker.unread == (0, 0)
        assert breaker(cluster, "w1").state(time.monotonic()) == "half-open"
        await worker.emit(first, 0, 1)
        await worker.say("heartbeat")
        second = await worker.next_dispatch()
        assert second.request_id == "r2"
        await worker.finish(second)
        assert (await worker.next_dispatch()).request_id == "r3"
        assert breaker(cluster, "w1").state(time.monotonic()) == "closed"


async def test_where_the_trial_fails_too_the_next_one_waits_for_another(start: Start) -> None:
    async with start(**BREAKS_AT_ONCE) as cluster:
        worker = await _opened(cluster)
        first, second = [await ask_and_wait(cluster, name) for name in ("r1", "r2")]
        await _let_recover(cluster, worker)
        await _fail_by_crash(worker)
        assert (await first.end()).error.code == "engine_crashed"
        await hear_queued(second)
        assert (breaker(cluster, "w1").times_opened, worker.unread) == (2, (0, 0))
        await _let_recover(cluster, worker)
        assert (await worker.next_dispatch()).request_id == "r2"


async def test_who_waits_in_vain_for_a_breaker_is_told_when_it_may_close(start: Start) -> None:
    async with start(**BREAKS_AT_ONCE, waiting_room={"max_wait_ms": 300}) as cluster:
        worker = await _opened(cluster)
        error = (await (await ask(cluster)).end()).error
        assert (error.code, error.retryable) == ("circuit_open", True)
        assert error.retry_after_ms is not None and 1000 < error.retry_after_ms <= 60_000
        assert worker.unread == (0, 0)


# Retries.


async def test_what_a_lost_worker_had_goes_to_another_one_after_a_pause(start: Start) -> None:
    async with start(retry={"initial_delay_ms": 300, "multiplier": 2, "jitter": 0}) as cluster:
        workers = {
            name: await cluster.worker(name, active_requests=load)
            for load, name in enumerate(("w1", "w2", "w3"))
        }
        inbox = await ask(cluster)
        assert (await workers["w1"].next_dispatch()).attempt == cluster.first_attempt
        plan = (("w1", "w2", 0.3), ("w2", "w3", 0.6))
        for number, (name, other, pause_s) in enumerate(plan):
            await runs(cluster, number)
            lost_at = time.monotonic()
            await workers[name].say("left")
            again = await workers[other].next_dispatch()
            assert again.attempt == cluster.first_attempt + number + 1
            assert time.monotonic() - lost_at >= pause_s
        assert {"accepted"} <= {one.status for one in inbox.rest_of_status()}


async def test_a_request_that_is_cancelled_in_the_pause_ends_as_cancelled(start: Start) -> None:
    async with start(retry={"initial_delay_ms": 60_000, "max_delay_ms": 60_000}) as cluster:
        worker = await cluster.worker("w1")
        inbox = await ask(cluster)
        await _fail_by_crash(worker)
        await cluster.until(lambda: request_in(cluster).failures.count == 1)
        await cluster.query("cancel", "r")
        await hear_cancelled(inbox)
        assert worker.unread == (0, 0)


async def test_a_pause_that_would_pass_the_deadline_is_not_made(start: Start) -> None:
    async with start(retry={"initial_delay_ms": 30_000, "max_delay_ms": 30_000}) as cluster:
        worker = await cluster.worker("w1")
        inbox = await ask(cluster, timeout_ms=20_000)
        await _fail_by_crash(worker)
        end = await inbox.end()
        assert (end.error.code, end.error.retryable) == ("engine_crashed", True)
        assert cluster.machine.active == 0
