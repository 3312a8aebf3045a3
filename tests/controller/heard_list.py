"""What a client hears of a list of prompts, put together by the client library's own rules."""

from shared.client.assembler import Assembler
from shared.errors import StreamFailed
from shared.ids import RequestId
from shared.messages.stream import Chunk, Done, Failed, StreamError, StreamMessage
from tests.controller.running import Inbox


class HeardList:
    """One client's view of a list.

    Attributes:
        messages: all that came, in order.
        tokens, reasons, errors: by choice.
    """

    def __init__(self, inbox: Inbox, *, request_id: str = "r", choices: int) -> None:
        self.inbox = inbox
        self._assembler = Assembler(RequestId(request_id), choices=choices)
        self.messages: list[StreamMessage] = []
        self.tokens: dict[int, list[int]] = {}
        self.reasons: dict[int, str] = {}
        self.errors: dict[int, StreamError] = {}

    @property
    def chunks(self) -> list[Chunk]:
        return [message for message in self.messages if isinstance(message, Chunk)]

    async def has_tokens(self, count: int) -> None:
        """Return once so many came."""
        while sum(map(len, self.tokens.values())) < count:
            await self._hear()

    async def has_ended(self, choice: int) -> None:
        """Return once a choice has its finish_reason."""
        while choice not in self.reasons:
            await self._hear()

    async def done(self) -> Done:
        """The good end; nothing else came after it."""
        end = await self._end()
        assert isinstance(end, Done), end
        assert self._assembler.done, "something is missing"
        return end

    async def failed(self) -> Failed:
        end = await self._end()
        assert isinstance(end, Failed), end
        return end

    async def _end(self) -> StreamMessage:
        while not isinstance(await self._hear(), Done | Failed):
            pass
        assert self.inbox.rest() == []
        return self.messages[-1]

    async def _hear(self) -> StreamMessage:
        message = await self.inbox.next()
        self.messages.append(message)
        assert (message.attempt, message.worker) == (0, None)
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
