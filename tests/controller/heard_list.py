"""Lists of prompts: how tests ask, and what a client hears, put together by the client library's
own rules."""

from typing import Any

from shared.client.assembler import StreamAssembler
from shared.errors import StreamFailed
from shared.ids import RequestId
from shared.messages.dispatch import Dispatch
from shared.messages.stream import (
    ChunkMessage,
    DoneMessage,
    ErrorDetails,
    FailedMessage,
    StreamMessage,
)
from tests.controller.inbox import Inbox
from tests.controller.running import Running
from tests.controller.simulated_worker import SimulatedWorker


class HeardList:
    """One client's view of a list.

    Attributes:
        messages: all that came, in order.
        tokens, reasons, errors: by choice.
    """

    def __init__(self, inbox: Inbox, *, attempt: int, request_id: str = "r", choices: int) -> None:
        """`attempt`: that of all messages."""
        self.inbox = inbox
        self._attempt = attempt
        self._assembler = StreamAssembler(RequestId(request_id), choices=choices)
        self.messages: list[StreamMessage] = []
        self.tokens: dict[int, list[int]] = {}
        self.reasons: dict[int, str] = {}
        self.errors: dict[int, ErrorDetails] = {}

    @property
    def chunks(self) -> list[ChunkMessage]:
        return [message for message in self.messages if isinstance(message, ChunkMessage)]

    async def has_tokens(self, count: int) -> None:
        """Return once so many came."""
        while sum(map(len, self.tokens.values())) < count:
            await self._hear()

    async def has_ended(self, choice: int) -> None:
        """Return once a choice has its finish_reason."""
        while choice not in self.reasons:
            await self._hear()

    async def done(self) -> DoneMessage:
        """The good end; nothing else came after it."""
        end = await self._end()
        assert isinstance(end, DoneMessage), end
        assert self._assembler.done, "something is missing"
        return end

    async def failed(self) -> FailedMessage:
        end = await self._end()
        assert isinstance(end, FailedMessage), end
        return end

    async def _end(self) -> StreamMessage:
        while not isinstance(await self._hear(), DoneMessage | FailedMessage):
            pass
        assert self.inbox.rest() == []
        return self.messages[-1]

    async def _hear(self) -> StreamMessage:
        message = await self.inbox.next()
        self.messages.append(message)
        assert (message.attempt, message.worker) == (self._attempt, None)
        try:
            outputs = self._assembler.take(message)
        except StreamFailed:
            return message
        for output in outputs:
            self.tokens.setdefault(output.choice, []).extend(output.token_ids)
            if output.finish_reason is not None:
                self.reasons[output.choice] = output.finish_reason
            if output.error is not None:
                self.errors[output.choice] = output.error
        return message


async def ask(cluster: Running, prompts: int = 2, **fields: Any) -> Inbox:
    """Ask for the one list of these tests."""
    texts = [f"prompt {number}" for number in range(prompts)]
    return await cluster.ask(request_id="r", seed=5, prompt=texts, **fields)


async def heard(cluster: Running, prompts: int = 2, **fields: Any) -> HeardList:
    inbox = await ask(cluster, prompts, **fields)
    choices = prompts * fields.get("n", 1)
    return HeardList(inbox, attempt=cluster.first_attempt - 1, choices=choices)


Sent = list[tuple[SimulatedWorker, Dispatch]]


async def dispatched(cluster: Running, *workers: SimulatedWorker, count: int) -> Sent:
    """The next dispatches of all workers together, in the order of their prompts."""
    await cluster.until(lambda: sum(worker.unread[0] for worker in workers) >= count)
    found = [
        (worker, await worker.next_dispatch())
        for worker in workers
        for _ in range(worker.unread[0])
    ]
    return sorted(found, key=lambda one: str(one[1].request.prompt))


async def both(
    cluster: Running, **fields: Any
) -> tuple[HeardList, list[tuple[SimulatedWorker, Dispatch]]]:
    """The list with its two prompts at workers."""
    workers = [await cluster.worker(f"w{number}") for number in range(2)]
    stream = await heard(cluster, **fields)
    return stream, await dispatched(cluster, *workers, count=2)
