"""Many simulated workers in one process, on one connection, for what a controller costs: they
speak a worker's protocol, tell realistic states, and generate nothing.

    python -m benchmarks.simulated_fleet --nats URL --workers 1000

Each holds 10 of 100 models. A request is acknowledged at once and ends 20 ms later with one token:
its owner is told, then its client. What `benchmarks.simulated_workers` does with a worker's own
code is done by hand here, so that a thousand fit beside the controller.
"""

import argparse
import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import orjson
import uvloop

from benchmarks.pace import steps
from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.codec import encode
from shared.ids import BootId, ClientName, ControllerId, ModelId, SkillName, WorkerId
from shared.messages.base import PRIORITIES
from shared.messages.engine_status import EngineStatus, ModelBatchStatus, PrefixCacheStatus
from shared.messages.events import WorkerEvent
from shared.messages.model_status import ModelPerformance, ModelStatus
from shared.messages.prefixes import conversation_links, session_link
from shared.messages.worker_report import (
    Hardware,
    MemoryStatus,
    QueuePriorityStatus,
    QueueStatus,
    WorkerReport,
)
from shared.settings.nats import NatsSettings
from shared.version import PROTOCOL, VERSION

MODELS = 100
HOP = "bench.hop"
"""Whatever is asked here is answered with when it came, as `arrived_s`."""

_MODELS_EACH = 10
_HEARTBEAT_S = 1.0
_KEPT_EVERY = 5
_MOST_KEPT = 500
_ANSWER_S = 0.02
_TICKS_PER_S = 100
_GB = 1 << 30


def skills() -> dict[SkillName, list[ModelId]]:
    """Each model is the only one of its skill."""
    return {SkillName(f"skill-{number}"): [_model(number)] for number in range(MODELS)}


def _model(number: int) -> ModelId:
    return ModelId(f"mlx-community/simulated-{number}-4bit")


def first_worker(skill: SkillName) -> tuple[WorkerId, ModelId]:
    """A worker that has the model of a skill, where there are ten at least."""
    model = int(skill.rpartition("-")[2])
    return WorkerId(f"simulated-{model // _MODELS_EACH}"), _model(model)


def report(number: int) -> WorkerReport:
    """What worker `number` (from 0) says of itself while it has nothing to do."""
    drawn = random.Random(number)
    models = [_model((number * _MODELS_EACH + each) % MODELS) for each in range(_MODELS_EACH)]
    return WorkerReport(
        id=WorkerId(f"simulated-{number}"),
        boot_id=BootId(f"{number:016x}"),
        version=VERSION,
        state="ready",
        max_batch_size=32,
        max_queue_depth=100,
        dispatches_per_message=64,
        queue=QueueStatus(
            levels={
                level: QueuePriorityStatus(admitted=number * 7, wait_p50_ms=1.25, wait_p95_ms=18.5)
                for level in PRIORITIES
            },
            room=dict.fromkeys(PRIORITIES, 100),
            drain_per_s=12.5,
        ),
        models=[_status(model, drawn) for model in models],
        engines=[_engine(models)],
        memory_bytes=40 * _GB,
        memory=MemoryStatus(
            own_bytes=40 * _GB, available_bytes=70 * _GB, soft_bytes=90 * _GB, hard_bytes=100 * _GB
        ),
        cpu_cores=0.21,
        hardware=Hardware(
            chip="Simulated", accelerator="metal", cores=16, memory_bytes=128 * _GB, os="macOS 26.1"
        ),
        labels={"room": f"room-{number % 7}"},
        uptime_s=1234.5,
        tasks=21,
    )


def _status(model: ModelId, drawn: random.Random) -> ModelStatus:
    speed = ModelPerformance(
        prefill_tokens_per_s=round(drawn.uniform(300, 3000), 1),
        step_ms=round(drawn.uniform(15, 60), 2),
        rows=32,
        bytes_per_token=round(drawn.uniform(3.5, 4.5), 3),
        prefill_share=round(drawn.uniform(0.3, 1.0), 3),
        answer_tokens=round(drawn.uniform(50, 300), 1),
        load_ms=round(drawn.uniform(2000, 20_000), 1),
    )
    return ModelStatus(
        id=model,
        state="warm",
        size_bytes=4 * _GB,
        idle_s=3.2,
        max_context_tokens=32768,
        speed=speed,
    )


def _engine(models: list[ModelId]) -> EngineStatus:
    return EngineStatus(
        index=0,
        pid=4321,
        state="running",
        memory_bytes=38 * _GB,
        kv_bytes=2 * _GB,
        kv_budget_bytes=20 * _GB,
        step_ms=31.7,
        threads=18,
        cpu_cores=0.17,
        batches=[ModelBatchStatus(model=model, limit=32, step_ms=31.7) for model in models[:2]],
        kv_memory=PrefixCacheStatus(blocks=812, hits=4711, misses=815, memory_bytes=3 * _GB),
    )


class SimulatedFleetWorker:
    """One of many: only what tells it from the others."""

    def __init__(self, number: int) -> None:
        made = report(number)
        self.id, self.boot_id = made.id, made.boot_id
        self._event = orjson.loads(encode(WorkerEvent(type="joined", worker=made)))
        self._links: dict[str, str] = {}
        self._sessions: dict[str, int] = {}
        self._told: set[str] = set()
        self._number = 0
        self.active = self.ended = self.term = 0

    def event(self) -> bytes:
        """Its state; the first one says that it joined."""
        said = self._event["worker"]
        said["active_requests"], said["completed_requests"] = self.active, self.ended
        said["term"] = self.term
        body = orjson.dumps(self._event)
        self._event["type"] = "heartbeat"
        return body

    def keep(self, client: ClientName, model: ModelId, request: Mapping[str, Any]) -> None:
        """It served this, and keeps the prompt."""
        for link, _ in conversation_links(model, request["messages"]):
            key = link.hex()
            self._links.pop(key, None)
            self._links[key] = "memory"
        while len(self._links) > _MOST_KEPT:
            del self._links[next(iter(self._links))]
        if (session := request.get("session_id")) is not None:
            key = session_link(client, session).hex()
            self._sessions[key] = self._sessions.get(key, 0) + 1

    def kept(self) -> dict[str, Any]:
        """All that it keeps."""
        sessions = dict(list(self._sessions.items())[-_MOST_KEPT:])
        return self._kept(whole=True, links=self._links, sessions=sessions, gone=[])

    def kept_changes(self) -> bytes:
        """What came and went since it was asked last; empty where nothing did."""
        come = {link: tier for link, tier in self._links.items() if link not in self._told}
        gone = [link for link in self._told if link not in self._links]
        if not come and not gone:
            return b""
        self._number += 1
        self._told = set(self._links)
        sessions = dict(list(self._sessions.items())[-_MOST_KEPT:])
        return orjson.dumps(self._kept(whole=False, links=come, sessions=sessions, gone=gone))

    def _kept(self, **fields: Any) -> dict[str, Any]:
        origin = {"protocol": PROTOCOL, "worker": self.id, "boot_id": self.boot_id}
        return {**origin, "number": self._number, **fields}


class SimulatedFleet:
    """All of them."""

    def __init__(self, bus: Bus, workers: int, answer_s: float) -> None:
        self._bus = bus
        self._answer_s = answer_s
        self._workers = [SimulatedFleetWorker(number) for number in range(workers)]
        self._by_id = {worker.id: worker for worker in self._workers}
        self._taken: deque[tuple[float, float, SimulatedFleetWorker, ControllerId, Any]] = deque()

    async def run(self) -> None:
        """Until cancelled."""
        await self._bus.subscribe(subjects.worker_infer(WorkerId("*")), self._on_dispatch)
        await self._bus.subscribe(subjects.worker_control(WorkerId("*"), "*"), self._on_order)
        alive = subjects.worker_alive(WorkerId("*"), BootId("*"))
        await self._bus.subscribe(alive, self._on_probe)
        await self._bus.subscribe(HOP, self._on_hop)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat())
            tasks.create_task(self._answer())

    async def _on_probe(self, message: IncomingMessage) -> None:
        await self._bus.publish(message.reply, b"")

    async def _beat(self) -> None:
        """Spread over the second, as they would be."""
        turns = round(_HEARTBEAT_S * _TICKS_PER_S)
        beats = itertools.count()
        async for _ in steps(_TICKS_PER_S):
            beat, turn = divmod(next(beats), turns)
            for number in range(turn, len(self._workers), turns):
                worker = self._workers[number]
                await self._bus.publish(subjects.worker_event(worker.id), worker.event())
                if (beat + number) % _KEPT_EVERY == 0 and (body := worker.kept_changes()):
                    await self._bus.publish(subjects.prefix_event(worker.id), body)

    async def _on_dispatch(self, message: IncomingMessage) -> None:
        arrived_s = time.perf_counter()
        worker = self._by_id[WorkerId(message.subject.split(".")[2])]
        batch = orjson.loads(message.payload)
        dispatches = batch["dispatches"]
        origin = {"protocol": PROTOCOL, "worker": worker.id, "boot_id": worker.boot_id}
        results = [
            {name: dispatch[name] for name in ("request_id", "client", "attempt")}
            for dispatch in dispatches
        ]
        await self._bus.publish(message.reply, orjson.dumps({**origin, "results": results}))
        worker.active += len(dispatches)
        for dispatch in dispatches:
            about = {name: dispatch[name] for name in ("request_id", "attempt", "seed")}
            accepted = orjson.dumps({**about, "worker": worker.id, "status": "accepted"})
            for inbox in dispatch["inboxes"]:
                await self._bus.publish(inbox, accepted)
            self._taken.append((time.monotonic(), arrived_s, worker, batch["owner"], dispatch))

    async def _answer(self) -> None:
        async for _ in steps(_TICKS_PER_S):
            due = time.monotonic() - self._answer_s
            while self._taken and self._taken[0][0] <= due:
                _, arrived_s, worker, owner, dispatch = self._taken.popleft()
                await self._end(arrived_s, worker, owner, dispatch)

    async def _end(
        self, arrived_s: float, worker: SimulatedFleetWorker, owner: ControllerId, dispatch: Any
    ) -> None:
        about = {name: dispatch[name] for name in ("request_id", "client", "attempt")}
        tokens = {"choice": 0, "index": 0, "token_ids": [1], "text_sent": 6}
        events = [{"type": "tokens", **about, **tokens}, {"type": "finished", **about}]
        origin = {"protocol": PROTOCOL, "worker": worker.id, "boot_id": worker.boot_id}
        told = orjson.dumps({**origin, "events": events})
        await self._bus.publish(subjects.request_event(owner, worker.id), told)
        done = orjson.dumps(
            {
                "request_id": dispatch["request_id"], "attempt": dispatch["attempt"],
                "worker": worker.id, "choice": 0, "index": 0, "token_ids": [1], "text": " token",
                "finish_reason": "length", "done": True, "arrived_s": arrived_s,
                "usage": {"prompt_tokens": 100, "cached_tokens": 0, "completion_tokens": 1},
                "timings": {"queue_ms": 0.1, "prefill_ms": 10, "ttft_ms": 20, "decode_ms": 0},
            }
        )  # fmt: skip
        for inbox in dispatch["inboxes"]:
            await self._bus.publish(inbox, done)
        worker.active -= 1
        worker.ended += 1
        worker.keep(dispatch["client"], dispatch["model"], dispatch["request"])

    async def _on_order(self, message: IncomingMessage) -> None:
        if not message.reply:
            return
        _, _, id, _, verb = message.subject.split(".")
        worker = self._by_id[WorkerId(id)]
        answer: dict[str, Any] = {"protocol": PROTOCOL, "worker": worker.id, "ok": True}
        if verb == "kept":
            answer["kept"] = worker.kept()
        if verb == "claim":
            worker.term = orjson.loads(message.payload)["term"]
            answer |= {"boot_id": worker.boot_id, "claimed": {"term": worker.term}}
        await self._bus.publish(message.reply, orjson.dumps(answer))

    async def _on_hop(self, message: IncomingMessage) -> None:
        arrived = orjson.dumps({"arrived_s": time.perf_counter()})
        await self._bus.publish(message.reply, arrived)


async def _run(nats: str, workers: int, answer_s: float) -> None:
    bus = await Bus.connect(NatsSettings(servers=[nats]), name="simulated-fleet", wait_s=10)
    try:
        await SimulatedFleet(bus, workers, answer_s).run()
    finally:
        await bus.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nats", required=True)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--answer-s", type=float, default=_ANSWER_S, help="until a request ends")
    arguments = parser.parse_args()
    uvloop.run(_run(arguments.nats, arguments.workers, arguments.answer_s))


if __name__ == "__main__":
    main()
