"""Simulated workers, for what lies around the engines: they speak a worker's protocol and
generate nothing.

    python -m benchmarks.simulated_workers --nats URL --workers 4 --steps-per-s 20

Each gives every one of its streams one token a step; at 0 steps/s it gives whole answers at once.
Messages are those of the worker itself, in its order: the owners' events first.
"""

import argparse
import asyncio
import contextlib
import itertools
from collections import defaultdict

import uvloop

from benchmarks.pace import steps
from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.codec import decode, encode
from shared.ids import BootId, ControllerId, ModelId, WorkerId
from shared.messages.control import ClaimReport, ClaimWorker, ControlReply
from shared.messages.dispatch import DispatchBatch, DispatchReply, DispatchResult
from shared.messages.events import EventType, WorkerEvent
from shared.messages.model_status import ModelStatus
from shared.messages.request_events import RequestEvent, RequestEvents
from shared.messages.stream import DoneMessage, StreamMessage, encode_multiplexed
from shared.messages.stream import encode as encode_stream
from shared.messages.worker_report import WorkerReport
from shared.settings.nats import NatsSettings
from shared.version import VERSION
from worker.link.facts import SequenceOutput
from worker.requests.active_request import ActiveRequest
from worker.requests.leader_events import finished_event, tokens_emitted

MODEL = ModelId("simulated")
WORD = " token"
PROMPT_TOKENS = 16
_PLACES = 10_000
_HEARTBEAT_S = 0.5
_BOOT = BootId("b1")


class SimulatedWorker:
    """One worker with places for everybody.

    Args:
        steps_per_s: 0 to answer at once.
    """

    def __init__(self, bus: Bus, name: str, steps_per_s: float) -> None:
        self._id = WorkerId(name)
        self._bus = bus
        self._steps_per_s = steps_per_s
        self._numbers = itertools.count(1)
        self._requests: list[ActiveRequest] = []
        self._term = 0

    async def run(self) -> None:
        """Until cancelled."""
        await self._bus.subscribe(subjects.worker_infer(self._id), self._on_dispatch)
        await self._bus.subscribe(subjects.worker_alive(self._id, _BOOT), self._on_probe)
        await self._bus.subscribe(subjects.worker_control(self._id, "claim"), self._on_claim)
        await self._say("joined")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat())
            if self._steps_per_s:
                tasks.create_task(self._make_steps())

    async def _on_probe(self, message: IncomingMessage) -> None:
        await self._bus.publish(message.reply, b"")

    async def _on_claim(self, message: IncomingMessage) -> None:
        self._term = decode(ClaimWorker, message.payload).term or 0
        claimed = ClaimReport(term=self._term)
        reply = ControlReply(worker=self._id, boot_id=_BOOT, ok=True, claimed=claimed)
        await self._bus.publish(message.reply, encode(reply))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            await self._say("heartbeat")

    async def _make_steps(self) -> None:
        async for _ in steps(self._steps_per_s):
            await self._step(self._requests)
            self._requests = [request for request in self._requests if request.end is None]

    async def _on_dispatch(self, message: IncomingMessage) -> None:
        batch = decode(DispatchBatch, message.payload)
        results, requests = [], []
        for dispatch in batch.dispatches:
            sequences = [next(self._numbers) for _ in range(dispatch.request.choices)]
            request = ActiveRequest(dispatch, batch.owner, self._id, sequences)
            for choice in request.choices:
                request.start_choice(choice, PROMPT_TOKENS)
            requests.append(request)
            results.append(
                DispatchResult(
                    request_id=dispatch.request_id,
                    client=dispatch.client,
                    attempt=dispatch.attempt,
                )
            )
        reply = DispatchReply(worker=self._id, boot_id=_BOOT, results=results)
        await self._bus.publish(message.reply, encode(reply))
        if self._steps_per_s:
            self._requests += requests
        else:
            await self._step(requests)

    async def _step(self, requests: list[ActiveRequest]) -> None:
        """New tokens for all: owners are told, then clients; one message to each inbox that
        streams share."""
        events: defaultdict[ControllerId, list[RequestEvent]] = defaultdict(list)
        shared: defaultdict[str, list[StreamMessage]] = defaultdict(list)
        own: list[tuple[str, StreamMessage]] = []
        for request in requests:
            for choice in request.unfinished:
                output = self._output(request, choice.sequence, choice.tokens)
                messages = request.advance(choice, output)
                if (emitted := tokens_emitted(request, choice, output)) is not None:
                    events[request.owner].append(emitted)
                for message in messages:
                    if isinstance(message, DoneMessage):
                        events[request.owner].append(finished_event(request))
                    for inbox in request.inboxes:
                        if request.multiplex:
                            shared[inbox].append(message)
                        else:
                            own.append((inbox, message))
        for owner, told in events.items():
            body = RequestEvents(worker=self._id, boot_id=_BOOT, events=told)
            await self._bus.publish(subjects.request_event(owner, self._id), encode(body))
        for inbox, messages in shared.items():
            await self._bus.publish(inbox, encode_multiplexed(messages))
        for inbox, message in own:
            await self._bus.publish(inbox, encode_stream(message))

    def _output(self, request: ActiveRequest, sequence: int, index: int) -> SequenceOutput:
        """The next token, or at once all."""
        asked = request.dispatch.request.max_tokens or 1
        tokens = 1 if self._steps_per_s else asked
        return SequenceOutput(
            sequence,
            index,
            list(range(index, index + tokens)),
            WORD * tokens,
            "length" if index + tokens >= asked else None,
        )

    async def _say(self, kind: EventType) -> None:
        report = WorkerReport(
            id=self._id,
            boot_id=_BOOT,
            version=VERSION,
            state="ready",
            active_requests=len(self._requests),
            max_batch_size=_PLACES,
            max_queue_depth=_PLACES,
            models=[ModelStatus(id=MODEL, state="warm")],
            term=self._term,
        )
        event = WorkerEvent(type=kind, worker=report)
        await self._bus.publish(subjects.worker_event(self._id), encode(event))


async def _run(nats: str, workers: int, steps_per_s: float) -> None:
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        for number in range(1, workers + 1):
            name = f"simulated-{number}"
            bus = await Bus.connect(NatsSettings(servers=[nats]), name=name, wait_s=10)
            stack.push_async_callback(bus.close)
            tasks.create_task(SimulatedWorker(bus, name, steps_per_s).run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nats", required=True)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps-per-s", type=float, default=20)
    arguments = parser.parse_args()
    uvloop.run(_run(arguments.nats, arguments.workers, arguments.steps_per_s))


if __name__ == "__main__":
    main()
