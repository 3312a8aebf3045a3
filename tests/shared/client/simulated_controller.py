"""A simulated controller, and a worker that says again what was lost: both as each test says."""

import asyncio

import orjson

from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.codec import encode
from shared.ids import ControllerId, RequestId, WorkerId
from shared.messages.control import RequestState, RequestStateName, ResendState, ResendStateName
from shared.messages.stream import (
    ChoiceOutput,
    ChunkMessage,
    DoneMessage,
    StreamMessage,
    Timings,
    Usage,
)
from shared.messages.stream import encode as encode_stream

MAC = WorkerId("mac")
WAIT_S = 20


class SimulatedController:
    """Takes requests, cancels and questions of every client; sends what it is told to."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.requests: asyncio.Queue[IncomingMessage] = asyncio.Queue()
        self.cancels: asyncio.Queue[IncomingMessage] = asyncio.Queue()
        self.questions: asyncio.Queue[IncomingMessage] = asyncio.Queue()
        self.resends: asyncio.Queue[IncomingMessage] = asyncio.Queue()

    async def open(self) -> None:
        await self._bus.subscribe("mlx.infer.*.*", self.requests.put)
        await self._bus.subscribe("mlx.request.*.cancel", self.cancels.put)
        await self._bus.subscribe("mlx.request.*.status", self.questions.put)
        await self._bus.subscribe(subjects.resend_all(MAC), self.resends.put)
        await self._bus.flush()

    async def next_request(self) -> tuple[IncomingMessage, RequestId]:
        message = await asyncio.wait_for(self.requests.get(), WAIT_S)
        return message, RequestId(orjson.loads(message.payload)["request_id"])

    async def next_cancel(self) -> IncomingMessage:
        return await asyncio.wait_for(self.cancels.get(), WAIT_S)

    async def next_question(self) -> IncomingMessage:
        return await asyncio.wait_for(self.questions.get(), WAIT_S)

    async def next_resend(self) -> IncomingMessage:
        return await asyncio.wait_for(self.resends.get(), WAIT_S)

    async def send(self, request: IncomingMessage, *messages: StreamMessage) -> None:
        """Answer a request or a question for what was lost."""
        for message in messages:
            await self._bus.publish(request.reply, encode_stream(message))

    async def tell_state(
        self, question: IncomingMessage, state: RequestStateName, worker: WorkerId | None = None
    ) -> None:
        asked = RequestId(orjson.loads(question.payload)["request_id"])
        controller = ControllerId("c-1")
        answer = RequestState(request_id=asked, state=state, controller=controller, worker=worker)
        await self._bus.publish(question.reply, encode(answer))

    async def tell_resend_state(self, resend: IncomingMessage, state: ResendStateName) -> None:
        asked = RequestId(orjson.loads(resend.payload)["request_id"])
        await self._bus.publish(resend.reply, encode(ResendState(request_id=asked, state=state)))


def chunk(
    request_id: RequestId, index: int, text: str, *token_ids: int, choice: int = 0, attempt: int = 0
) -> ChunkMessage:
    return ChunkMessage(
        request_id, attempt, MAC, ChoiceOutput(choice, index, list(token_ids), text)
    )


def done(
    request_id: RequestId, *outputs: ChoiceOutput, tokens: int = 1, attempt: int = 0
) -> DoneMessage:
    return DoneMessage(request_id, attempt, MAC, Usage(1, 0, tokens), Timings(1, 2, 3, 4), outputs)
