"""Requests that wait for a worker: how tests ask, and what they look at."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from controller.fleet.circuit_breaker import CircuitBreaker
from controller.fleet.worker_view import WorkerView
from controller.requests.metrics import DispatchCounts
from controller.requests.request import TrackedRequest
from shared.bus import Bus
from shared.ids import LOCAL_CLIENT, RequestId, WorkerId
from shared.messages.stream import StatusMessage
from shared.settings.nats import NatsSettings
from tests.controller.inbox import Inbox
from tests.controller.running import Running, running_controller

FULL: dict[str, Any] = {"active_requests": 8, "queued_requests": 10}
ROOM_FOR_ONE: dict[str, Any] = {"active_requests": 8, "queued_requests": 9}
ROOM: dict[str, Any] = {"active_requests": 0, "queued_requests": 0}
PATIENT_ROOM = {"max_wait_ms": 60_000}
SETTLES_SOON = {"heartbeat_interval_ms": 200, "missed_heartbeats": 100}
"""Soon after its start the controller has heard all workers there are."""

Start = Callable[..., "contextlib.AbstractAsyncContextManager[Running]"]


def starter(nats: NatsSettings, bus: Bus) -> Start:
    """Starts a controller in which requests wait."""

    def start(**sections: Any) -> contextlib.AbstractAsyncContextManager[Running]:
        defaults = {"failover": SETTLES_SOON, "waiting_room": PATIENT_ROOM}
        return running_controller(nats, bus, **{**defaults, **sections})

    return start


def totals(cluster: Running) -> DispatchCounts:
    return cluster.controller._metrics.totals


def view(cluster: Running, worker: str) -> WorkerView:
    found = cluster.controller._registry.worker(WorkerId(worker))
    assert found is not None
    return found


def breaker(cluster: Running, worker: str) -> CircuitBreaker:
    found = view(cluster, worker).breaker
    assert found is not None
    return found


def request_in(cluster: Running, request_id: str = "r") -> TrackedRequest:
    found = cluster.machine.find((LOCAL_CLIENT, RequestId(request_id)))
    assert found is not None
    return found


async def ask(cluster: Running, request_id: str = "r", **body: Any) -> Inbox:
    return await cluster.ask(request_id=request_id, **body)


async def ask_and_wait(cluster: Running, request_id: str = "r", **body: Any) -> Inbox:
    """Return when the request waits for a worker, behind those before it."""
    before = cluster.machine.waiting
    inbox = await ask(cluster, request_id, **body)
    await cluster.until(lambda: cluster.machine.waiting == before + 1)
    return inbox


async def runs(cluster: Running, number: int = 0) -> None:
    """Return when the controller knows that a worker has the request, at so many attempts after
    the first one."""
    wanted = "running", cluster.first_attempt + number
    await cluster.until(lambda: (request_in(cluster).state, request_in(cluster).attempt) == wanted)


async def settled(cluster: Running) -> None:
    """Return when it has heard all workers that are there."""
    await cluster.until(lambda: time.monotonic() > cluster.machine._dispatcher._settled_at)


async def hear_queued(inbox: Inbox) -> StatusMessage:
    """It hears that it waits: half a second after it came, then again and again."""
    message = await inbox.next()
    assert isinstance(message, StatusMessage) and (message.status, message.worker) == (
        "queued",
        None,
    )
    return message


async def hear_cancelled(inbox: Inbox) -> None:
    end = await inbox.done()
    assert [output.finish_reason for output in end.outputs] == ["cancelled"]
