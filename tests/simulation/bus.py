"""A `Bus` whose servers are a simulated `Network`."""

import asyncio
import itertools
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, cast

from nats.js import JetStreamContext

from shared.bus import Bus, Handler, IncomingMessage, MicroService, Subscription
from shared.bus.service import Endpoint
from shared.errors import BusError, BusTimeout, NoResponders
from shared.settings.nats import NatsSettings
from tests.simulation.loop import SimulatedLoop
from tests.simulation.network import Network

_MAX_PAYLOAD_BYTES = 8 * 2**20
_NATS = NatsSettings()


class SimulatedSubscription(Subscription):
    """Its handler is called for one message after another."""

    def __init__(self, bus: "SimulatedBus", subject: str, queue: str, handler: Handler) -> None:
        super().__init__(subject, queue, handler, bus.statistics, bus.forget)
        self.bus = bus
        self.subject, self.queue = subject, queue
        self.listens = True
        self._call = handler
        self._pending: deque[IncomingMessage] = deque()
        self._busy = False

    @property
    def connection(self) -> str:
        return self.bus.name

    @property
    def reachable(self) -> bool:
        return self.listens and self.bus.connected

    async def unsubscribe(self) -> None:
        self._forget(self)

    def take(self, message: IncomingMessage) -> None:
        self._pending.append(message)
        if not self._busy:
            self._busy = True
            self.bus.process.start(self._handle())

    async def _handle(self) -> None:
        while self._pending and self.listens:
            try:
                await self._call(self._pending.popleft())
            except Exception as error:
                self.bus.faults.append(error)
        self._busy = False


class _Answers:
    """Takes the answers to a connection's own requests."""

    queue = ""

    def __init__(self, bus: "SimulatedBus") -> None:
        self._bus = bus
        self._prefix = f"_INBOX.{bus.name}.answers"
        self.subject = f"{self._prefix}.*"
        self._numbers = itertools.count(1)
        self._awaited: dict[str, asyncio.Future[IncomingMessage]] = {}

    @property
    def connection(self) -> str:
        return self._bus.name

    @property
    def reachable(self) -> bool:
        return self._bus.connected

    def take(self, message: IncomingMessage) -> None:
        answer = self._awaited.get(message.subject)
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def ask(self, subject: str, payload: bytes, timeout_s: float) -> IncomingMessage:
        """Raises TimeoutError."""
        reply = f"{self._prefix}.{next(self._numbers)}"
        answer: asyncio.Future[IncomingMessage] = asyncio.get_running_loop().create_future()
        self._awaited[reply] = answer
        try:
            await self._bus.publish(subject, payload, reply=reply)
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            del self._awaited[reply]


class SimulatedBus(Bus):
    """Belongs to a process of its own.

    Attributes:
        server: that it is connected to, or will be.
        publish_s: how long publishing takes, as where the buffer is full.
        faults: what handlers raised.
    """

    def __init__(self, network: Network, name: str, *, server: str) -> None:
        super().__init__(_NATS, name=name)
        self.name = name
        self.server = server
        self.process = cast(SimulatedLoop, asyncio.get_running_loop()).process()
        self.publish_s = 0.0
        self.faults: list[Exception] = []
        self._network = network
        self._up = True
        self._gone = False
        self._inboxes = itertools.count(1)
        self._unsent: list[tuple[str, bytes, str]] = []
        self._answers = _Answers(self)
        self._heard: list[SimulatedSubscription] = []
        self.connections = 1
        self._connected.set()
        network.add(self._answers)

    @property
    def connected(self) -> bool:
        return self._up

    def jetstream(self) -> JetStreamContext:
        raise BusError("there is no JetStream here but for the leader's record")

    @property
    def max_payload(self) -> int:
        return _MAX_PAYLOAD_BYTES

    @property
    def server_url(self) -> str:
        return "nats://simulated"

    def new_inbox(self) -> str:
        return f"_INBOX.{self.name}.{next(self._inboxes)}"

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if self._up:
            self._network.publish(self.name, subject, payload, reply)
        elif not self._gone:
            self._unsent.append((subject, payload, reply))
        if self.publish_s:
            await asyncio.sleep(self.publish_s)

    def send(self, subject: str, payload: bytes, *, reply: str = "") -> None:
        if not self._up:
            raise BusError("there is no connection")
        self._network.publish(self.name, subject, payload, reply)

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> IncomingMessage:
        try:
            answer = await self._answers.ask(subject, payload, timeout_s)
        except TimeoutError:
            raise BusTimeout(f"no answer on {subject} within {timeout_s:g} s") from None
        if answer.no_responders:
            raise NoResponders(f"no responders on {subject}")
        return answer

    async def flush(self, *, timeout_s: float = 2) -> None:
        if not self._up:
            await asyncio.sleep(timeout_s)
            raise BusError("there is no connection")
        back: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        connection = self.connections

        def came() -> None:
            if not back.done() and self._up and self.connections == connection:
                back.set_result(None)

        self._network.echo(self.name, came)
        try:
            async with asyncio.timeout(timeout_s):
                await back
        except TimeoutError:
            raise BusError(f"the server did not answer within {timeout_s:g} s") from None

    async def subscribe(
        self, subject: str, handler: Handler, *, queue: str = ""
    ) -> SimulatedSubscription:
        subscription = SimulatedSubscription(self, subject, queue, handler)
        self._heard.append(subscription)
        self._network.add(subscription)
        return subscription

    async def serve(self, service: MicroService) -> None:
        for endpoint in service.endpoints:
            await self.subscribe(endpoint.subject, self._answering(endpoint), queue=endpoint.queue)

    def _answering(self, endpoint: Endpoint) -> Handler:
        async def answer(message: IncomingMessage) -> None:
            if message.reply:
                await self.publish(message.reply, endpoint.answer())

        return answer

    async def close(self) -> None:
        self._leave()

    def forget(self, subscription: Subscription) -> None:
        assert isinstance(subscription, SimulatedSubscription)
        if subscription in self._heard:
            subscription.listens = False
            self._heard.remove(subscription)
            self._network.remove(subscription)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.process.start(work)

    def cut(self) -> None:
        """Lose the connection, and all that is on its way."""
        if self._up and not self._gone:
            self._up = False
            self._network.drop_all(self.name)
            self._on_disconnect()

    def mend(self) -> None:
        """Connect again; what was published meanwhile goes out."""
        if self._up or self._gone:
            return
        self._up = True
        self.connections += 1
        unsent, self._unsent = self._unsent, []
        for subject, payload, reply in unsent:
            self._network.publish(self.name, subject, payload, reply)
        self.spawn(self._on_reconnect())

    def die(self) -> None:
        """End as with the process: what was sent arrives, and nothing more comes."""
        self.process.kill()
        self._leave()

    def _leave(self) -> None:
        if self._gone:
            return
        self._up, self._gone = False, True
        for subscription in list(self._heard):
            self.forget(subscription)
        self._network.remove(self._answers)
