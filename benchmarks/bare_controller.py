"""The least that a controller could do: the messages of a request, and nothing decided.

    python -m benchmarks.bare_controller --nats URL --id controller-1

Each request is accepted and handed, as its bytes are, to the first simulated worker that has its
model. What workers say of themselves is counted, and not read. A limit for `benchmarks.routing`.
"""

import argparse
import asyncio
from typing import Any

import orjson
import uvloop

from benchmarks.simulated_fleet import first_worker
from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.codec import encode
from shared.ids import BootId, ControllerId
from shared.messages.controller_report import ControllerReport
from shared.messages.health import ControllerHealth
from shared.settings.nats import NatsSettings
from shared.version import PROTOCOL, VERSION

_ACK_S = 1.0


class BareController:
    def __init__(self, bus: Bus, id: ControllerId) -> None:
        self._bus = bus
        self._id = id
        self._arrived: asyncio.Queue[IncomingMessage] = asyncio.Queue()
        self._heard: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        bus = self._bus
        await bus.subscribe(subjects.WORKER_EVENT_ALL, self._on_worker_event)
        await bus.subscribe(subjects.request_event_all(self._id), self._on_request_events)
        await bus.subscribe(subjects.controller_health(self._id), self._on_health)
        await bus.subscribe(subjects.INFER_ALL, self._arrived.put)
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._route(await self._arrived.get()))

    async def _route(self, message: IncomingMessage) -> None:
        client, skill = subjects.parse_infer(message.subject)
        origin = {"request_id": orjson.loads(message.payload)["request_id"], "attempt": 0}
        accepted = {**origin, "worker": None, "status": "accepted", "seed": 1}
        await self._bus.publish(message.reply, orjson.dumps(accepted))
        worker, model = first_worker(skill)
        dispatch: dict[str, Any] = {
            **origin, "client": client, "skill": skill, "model": model, "seed": 1,
            "elapsed_ms": 0.0, "inboxes": [message.reply],
            "request": orjson.Fragment(message.payload),
        }  # fmt: skip
        batch = {"protocol": PROTOCOL, "owner": self._id, "term": 1, "dispatches": [dispatch]}
        subject = subjects.worker_infer(worker)
        answer = await self._bus.request(subject, orjson.dumps(batch), timeout_s=_ACK_S)
        orjson.loads(answer.payload)

    async def _on_request_events(self, message: IncomingMessage) -> None:
        orjson.loads(message.payload)

    async def _on_worker_event(self, message: IncomingMessage) -> None:
        self._heard.add(message.subject)

    async def _on_health(self, message: IncomingMessage) -> None:
        report = ControllerReport(
            id=self._id,
            boot_id=BootId("bare"),
            version=VERSION,
            state="ready",
            workers=len(self._heard),
        )
        health = ControllerHealth(ready=True, controller=report)
        await self._bus.publish(message.reply, encode(health))


async def _run(nats: str, id: ControllerId) -> None:
    bus = await Bus.connect(NatsSettings(servers=[nats]), name=id, wait_s=10)
    try:
        await BareController(bus, id).run()
    finally:
        await bus.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nats", required=True)
    parser.add_argument("--id", required=True)
    arguments = parser.parse_args()
    uvloop.run(_run(arguments.nats, ControllerId(arguments.id)))


if __name__ == "__main__":
    main()
