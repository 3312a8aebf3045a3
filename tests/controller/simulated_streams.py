"""What a simulated worker says of its requests: to the leader that claimed it, and to clients."""

from typing import Any

from shared import subjects
from shared.bus import Bus
from shared.codec import encode
from shared.ids import BootId, WorkerId
from shared.messages.dispatch import Dispatch
from shared.messages.request_events import (
    AttemptFailed,
    RequestCompleted,
    RequestEvent,
    RequestEvents,
    TokensEmitted,
)
from shared.messages.stream import (
    ChoiceOutput,
    ChunkMessage,
    DoneMessage,
    ErrorDetails,
    FailedMessage,
    StreamMessage,
    Timings,
    Usage,
)
from shared.messages.stream import encode as encode_stream
from tests.controller.simulated_requests import SimulatedRequests
from worker.agent.leader_fence import LeaderFence


class SimulatedStreams:
    """
    Attributes:
        claim: whose dispatches and orders count; that one is told of requests.
        requests: what the worker has, and had; that is told who claims it.
    """

    def __init__(self, bus: Bus, name: str, boot: str) -> None:
        self.id = WorkerId(name)
        self.boot = BootId(boot)
        self.claim = LeaderFence()
        self.requests = SimulatedRequests()
        self._bus = bus

    async def emit(
        self,
        dispatch: Dispatch,
        index: int,
        *token_ids: int,
        choice: int = 0,
        text_sent: int = 0,
        **fields: Any,
    ) -> None:
        """New tokens of a choice, of which the leader alone is told."""
        self.requests.emit(dispatch, choice, index, token_ids)
        event = TokensEmitted(
            **origin_of(dispatch), choice=choice, index=index, token_ids=list(token_ids),
            text_sent=text_sent, **fields,
        )  # fmt: skip
        await self._tell(event)

    async def finish(self, dispatch: Dispatch) -> None:
        """The good end of a stream that had not begun."""
        await self.end(dispatch, spoken(0, 1, finish_reason="stop"), usage=Usage(1, 0, 1))

    async def speak(self, dispatch: Dispatch, index: int, *token_ids: int, **fields: Any) -> None:
        """New tokens of a choice, the first one by default, to the leader and then to the
        client."""
        output = spoken(index, *token_ids, **fields)
        await self.emit(dispatch, index, *token_ids, choice=output.choice)
        await self.send(
            dispatch, ChunkMessage(dispatch.request_id, dispatch.attempt, self.id, output)
        )

    async def end(self, dispatch: Dispatch, *outputs: ChoiceOutput, usage: Usage) -> None:
        """The good end of a stream, with its last outputs: the leader is told first, so that it
        never knows less than the client."""
        await self.finish_unheard(dispatch)
        origin = dispatch.request_id, dispatch.attempt, self.id
        await self.send(dispatch, DoneMessage(*origin, usage, Timings(1, 2, 3, 4), outputs))

    async def finish_unheard(self, dispatch: Dispatch) -> None:
        """The leader is told of the end; what the client is told gets lost."""
        self.requests.end(dispatch, "finished")
        await self._tell(RequestCompleted(**origin_of(dispatch)))

    async def answer_all(self, dispatch: Dispatch, *token_ids: int) -> None:
        """The same whole answer in each choice."""
        n = dispatch.request.n
        for choice in range(n - 1):
            await self.speak(dispatch, 0, *token_ids, choice=choice, finish_reason="stop")
        last = spoken(0, *token_ids, choice=n - 1, finish_reason="stop")
        await self.end(dispatch, last, usage=Usage(5, 1, n * len(token_ids)))

    async def send(self, dispatch: Dispatch, message: StreamMessage) -> None:
        """Tell all clients that listen."""
        multiplex = dispatch.request.multiplex
        for inbox in self.requests.inboxes(dispatch):
            await self._bus.publish(inbox, encode_stream(message, multiplex=multiplex))

    async def fail_openly(self, dispatch: Dispatch, error: ErrorDetails) -> None:
        """A bad end of which the client is told too."""
        await self.fail(dispatch, terminal_sent=True, code=error.code, message=error.message)
        origin = dispatch.request_id, dispatch.attempt, self.id
        await self.send(dispatch, FailedMessage(*origin, error))

    async def fail(
        self,
        dispatch: Dispatch,
        *,
        terminal_sent: bool,
        code: str = "internal_error",
        message: str = "the engine ended",
        suspect: bool = False,
    ) -> None:
        """A bad end, of which the leader alone is told."""
        event = AttemptFailed(
            **origin_of(dispatch),
            code=code,
            message=message,
            terminal_sent=terminal_sent,
            suspect=suspect,
        )
        self.requests.end(dispatch, "failed" if terminal_sent else "returned", event)
        await self._tell(event)

    async def _tell(self, event: RequestEvent) -> None:
        assert self.claim.controller is not None
        batch = RequestEvents(worker=self.id, boot_id=self.boot, events=[event])
        subject = subjects.request_event(self.claim.controller, self.id)
        await self._bus.publish(subject, encode(batch))


def spoken(index: int, *token_ids: int, choice: int = 0, **fields: Any) -> ChoiceOutput:
    """Tokens and their text."""
    text = "".join(f"<{token}>" for token in token_ids)
    return ChoiceOutput(choice, index, list(token_ids), text, **fields)


def origin_of(dispatch: Dispatch) -> dict[str, Any]:
    return {
        "request_id": dispatch.request_id,
        "client": dispatch.client,
        "attempt": dispatch.attempt,
    }
