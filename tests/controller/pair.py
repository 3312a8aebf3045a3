"""Two controllers in this process on one server: one leads, the other one stands by."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from shared.bus import Bus
from shared.ids import ControllerId
from shared.settings.nats import NatsSettings
from shared.telemetry import Tracer
from tests.controller.running import Running, running_controller
from tests.controller.simulated_worker import SimulatedWorker

FIRST, SECOND = ControllerId("c-1"), ControllerId("c-2")
QUICK = {"heartbeat_interval_ms": 100, "missed_heartbeats": 100}
"""Controllers soon hear of each other, and miss no worker however slow this machine is."""


class Pair:
    """The first one leads from the beginning."""

    def __init__(self, first: Running, second: Running) -> None:
        self.first, self.second = first, second
        self.ask, self.query = first.ask, first.query

    async def worker(self, name: str, **fields: Any) -> SimulatedWorker:
        """One that both know and the leader has claimed."""
        worker = await self.first.worker(name, **fields)
        await self.second.until(lambda: self.second.knows(worker))
        return worker


@contextlib.asynccontextmanager
async def running_pair(
    nats: NatsSettings,
    bus: Bus,
    *,
    first_nats: NatsSettings | None = None,
    tracer: Tracer | None = None,
    **sections: Any,
) -> AsyncIterator[Pair]:
    """
    Args:
        first_nats: where the first one connects, if elsewhere.
        tracer: of both.
        sections: of the settings of `controller`.
    """
    settings: dict[str, Any] = {"failover": QUICK, **sections}
    async with (
        running_controller(first_nats or nats, bus, name=FIRST, tracer=tracer, **settings) as first,
        running_controller(nats, bus, name=SECOND, tracer=tracer, **settings) as second,
    ):
        await first.until(lambda: first.hears(SECOND))
        yield Pair(first, second)
