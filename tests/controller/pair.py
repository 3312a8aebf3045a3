"""Two controllers in this process on one server, which know each other."""

import contextlib
import functools
from collections.abc import AsyncIterator, Callable

from controller.service import Controller
from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.ids import BootId, ControllerId
from shared.messages.codec import encode
from shared.messages.control import RequestState
from shared.messages.events import ControllerEvent, ControllerReport, ControllerState, EventType
from shared.settings.tree import Nats
from tests.controller.running import Running, running_controller
from tests.controller.simulated_worker import SimulatedWorker

FIRST, SECOND = ControllerId("c-1"), ControllerId("c-2")
DEAD = ControllerId("c-dead")
_listening: dict[tuple[Bus, ControllerId], Subscription] = {}
_QUICKLY_KNOWN = {"heartbeat_interval_ms": 100, "missed_heartbeats": 100}


class Pair:
    """Requests go to either, as the server likes."""

    def __init__(self, first: Running, second: Running) -> None:
        self.controllers = (first, second)
        self.ask, self.send, self.query = first.ask, first.send, first.query
        self._bus = first.bus

    @property
    def accepted(self) -> list[int]:
        """How many requests each has accepted."""
        return [one.controller.report().accepted_requests for one in self.controllers]

    async def worker(self, name: str) -> SimulatedWorker:
        """One that both know."""
        worker = SimulatedWorker(self._bus, name)
        await worker.join()
        await self.until_each(lambda c: c._registry.worker(worker.id) is not None)
        return worker

    async def until_each(self, condition: Callable[[Controller], bool]) -> None:
        """Return once it holds for both."""
        for one in self.controllers:
            await one.until(functools.partial(condition, one.controller))

    async def settle(self) -> None:
        """Return when both have handled what was published before, also what they forwarded."""
        for _ in range(2):
            for one in self.controllers:
                await one.settle()

    async def state(self, request_id: str) -> RequestState:
        """Once a worker has the request."""
        while (state := await self.query("status", request_id)).state == "dispatching":
            pass
        return state


@contextlib.asynccontextmanager
async def running_pair(nats: Nats, bus: Bus) -> AsyncIterator[Pair]:
    async with (
        running_controller(nats, bus, name=FIRST, failover=_QUICKLY_KNOWN) as first,
        running_controller(nats, bus, name=SECOND, failover=_QUICKLY_KNOWN) as second,
    ):
        for one in (first, second):
            await until_known(one, FIRST, SECOND)
        yield Pair(first, second)


async def until_known(running: Running, *controllers: ControllerId) -> None:
    """Return once a controller knows that these are ready."""

    def ready() -> set[ControllerId]:
        return {c.id for c in running.controller._registry.controllers if c.state == "ready"}

    await running.until(lambda: ready() >= set(controllers))


async def say_controller(
    bus: Bus,
    name: ControllerId,
    kind: EventType = "heartbeat",
    *,
    state: ControllerState = "ready",
    boot: str = "b",
) -> None:
    """What a controller of that name would say. Until `stop_listening` it is there for who probes
    it, and takes no requests."""
    report = ControllerReport(id=name, boot_id=BootId(boot), version="0.1.0", state=state)
    event = ControllerEvent(type=kind, controller=report)
    if (bus, name) not in _listening:
        subject = subjects.controller_health(name)
        _listening[bus, name] = await bus.subscribe(subject, _say_nothing)
    await bus.publish(subjects.controller_event(name), encode(event))


async def stop_listening(bus: Bus, name: ControllerId) -> None:
    """Its process has ended."""
    await _listening.pop((bus, name)).unsubscribe()


async def _say_nothing(_: Message) -> None:
    pass
