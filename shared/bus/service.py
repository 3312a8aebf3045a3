"""Health endpoints as a NATS micro service."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import nats.micro
from nats.micro.request import Request

from shared.bus.client import PatchedNatsClient
from shared.bus.receive_statistics import ReceiveStatistics
from shared.bus.subscription import MAX_SLICE_S, call_handler
from shared.subjects import is_any_inbox
from shared.time_slice import TimeSlice


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One subject that answers every request with the result of `answer`.

    One member of each `queue` group answers; for an answer of each process it is the process's id.
    """

    name: str
    subject: str
    queue: str
    answer: Callable[[], bytes]


@dataclass(frozen=True, slots=True, eq=False)
class MicroService:
    """A named service with its endpoints; `version` must be a semantic version."""

    name: str
    version: str
    description: str
    metadata: dict[str, str]
    endpoints: tuple[Endpoint, ...]

    async def attach(self, client: PatchedNatsClient) -> None:
        """Register on a client; called by the bus only, again after each rebuild."""
        service = await nats.micro.add_service(
            client,
            name=self.name,
            version=self.version,
            description=self.description,
            metadata=self.metadata,
        )
        for endpoint in self.endpoints:
            await service.add_endpoint(
                name=endpoint.name,
                subject=endpoint.subject,
                queue_group=endpoint.queue,
                handler=_handler(endpoint, client.statistics),
            )


def _handler(
    endpoint: Endpoint, statistics: ReceiveStatistics
) -> Callable[[Request], Awaitable[None]]:
    async def answer(request: Request) -> None:
        if is_any_inbox(request._msg.reply):  # the library has no public access to it
            await request.respond(endpoint.answer())

    time_slice = TimeSlice(MAX_SLICE_S)

    async def handle(request: Request) -> None:
        await call_handler(answer(request), endpoint.subject, statistics)
        if time_slice.is_over:  # the library would first answer all queries that wait
            await time_slice.end()

    return handle
