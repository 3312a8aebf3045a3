"""A leader played by the test: it answers what a gateway polls."""

import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import anyio
import anyio.to_thread

from shared import subjects
from shared.bus import Bus, IncomingMessage, Subscription
from shared.codec import decode, encode
from shared.ids import ControllerId
from shared.messages.health import ClusterHealth
from shared.messages.request_list import RequestList, RequestListQuery, RequestSummary
from shared.messages.rollout import RolloutReply, RolloutState
from tests.access.roles import as_tester
from tests.controller.gateway.live.test_cluster_rows import health

LEADER = ControllerId("c-1")


class ScriptedLeader:
    """
    Attributes:
        health: what it answers; may be changed at any time.
        requests: of all clients.
        queries: about requests, as they came.
    """

    def __init__(self) -> None:
        self.health: Callable[[], ClusterHealth] = health
        self.requests: list[RequestSummary] = []
        self.rollout = RolloutState()
        self.queries: list[RequestListQuery] = []

    async def serve(self, bus: Bus) -> list[Subscription]:
        async def on_health(message: IncomingMessage) -> None:
            await bus.publish(message.reply, encode(self.health()))

        async def on_list(message: IncomingMessage) -> None:
            query = decode(RequestListQuery, message.payload)
            self.queries.append(query)
            listed = [each for each in self.requests if query.client in (None, each.client)]
            answer = RequestList(controller=LEADER, total=len(listed), requests=listed)
            await bus.publish(message.reply, encode(answer))

        async def on_rollout(message: IncomingMessage) -> None:
            answer = RolloutReply(controller=LEADER, ok=True, state=self.rollout)
            await bus.publish(message.reply, encode(answer))

        handlers: dict[str, Callable[[IncomingMessage], Awaitable[None]]] = {
            subjects.HEALTH_CLUSTER: on_health,
            subjects.LIST_REQUESTS: on_list,
            subjects.rollout("*"): on_rollout,
        }
        subscriptions = [
            await bus.subscribe(subject, handle) for subject, handle in handlers.items()
        ]
        await bus.flush()
        return subscriptions


@contextlib.contextmanager
def leading(nats_url: str) -> Iterator[ScriptedLeader]:
    """Serve from a thread of its own, with its own connection."""
    leader, ready, stop = ScriptedLeader(), threading.Event(), threading.Event()

    async def serve() -> None:
        async with _connected(nats_url) as bus:
            await leader.serve(bus)
            ready.set()
            await anyio.to_thread.run_sync(stop.wait)

    thread = threading.Thread(target=anyio.run, args=(serve,), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield leader
    finally:
        stop.set()
        thread.join()


@contextlib.asynccontextmanager
async def _connected(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(as_tester(nats_url), name="leader", inbox_prefix="_INBOX.local")
    try:
        yield bus
    finally:
        await bus.close()
