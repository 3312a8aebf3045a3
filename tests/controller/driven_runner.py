"""A `PromptListRunner` driven by a test, which plays its leader, its workers and its clients."""

from typing import Any

from controller.prompt_lists.list_runner import PromptListRunner
from controller.requests.events import (
    EndRequests,
    Event,
    PromptListEnded,
    RequestReceived,
    StatusOrCancelReceived,
)
from controller.requests.instructions import PromptListCommand
from controller.requests.request import RequestKey, TrackedRequest
from shared.bus import IncomingMessage
from shared.ids import WorkerId
from shared.messages.stream import (
    ChoiceOutput,
    ChunkMessage,
    DoneMessage,
    ErrorDetails,
    FailedMessage,
    FinishReason,
    StatusMessage,
    StatusName,
    StreamMessage,
    Timings,
    Usage,
    decode,
    encode,
)
from shared.refused_messages import RefusedMessages
from tests.controller.values import request
from tests.worker.virtual_time import Clock

INBOX, LATER = "_INBOX.x", "_INBOX.later"
RUNNER = "_INBOX.c-1"
W1 = WorkerId("w1")
TIMINGS = Timings(1, 2, 3, 4)
_TICK_S = 0.25


class DrivenRunner:
    """
    Attributes:
        clock: of all of them.
        slots, most: of all workers, and of the one that has most.
        connections: how often a connection was made.
        events: all that was submitted to the leader.
        put: messages to clients: the inbox, what it says, and the reply subject.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.slots = self.most = 8
        self.connections = 1
        self.events: list[Event] = []
        self.put: list[tuple[str, list[StreamMessage], str]] = []
        self.known: dict[RequestKey, TrackedRequest] = {}
        self._read = self._missed = 0
        self.refused = RefusedMessages()
        self._runner = PromptListRunner(
            self._submit,
            self.known.get,
            lambda whole: (self.slots, self.most),
            lambda inbox, payload, reply: self.put.append((inbox, decode(payload), reply)),
            RUNNER,
            1_000_000,
            lambda: self.connections,
            self.refused,
        )

    @property
    def idle(self) -> bool:
        return self._runner.idle

    def limit_messages(self, max_bytes: int) -> None:
        """Of the server."""
        self._runner._publisher.max_bytes = max_bytes

    # The leader.

    def serve(self, prompts: int = 2, *, request_id: str = "r", **fields: Any) -> TrackedRequest:
        """One more list; each prompt has a number."""
        texts = [f"prompt {number}" for number in range(prompts)]
        body = {"prompt": texts, **fields}
        whole = request(request_id, now=self.clock.now, **body)
        self._runner.handle(PromptListCommand("serve", whole))
        return whole

    def order(self, verb: Any, whole: TrackedRequest, **fields: Any) -> None:
        self._runner.handle(PromptListCommand(verb, whole, **fields))

    def new_parts(self) -> list[TrackedRequest]:
        """Those that were submitted since the last look, also again."""
        published = [each.request for each in self.events if isinstance(each, RequestReceived)]
        new, self._read = published[self._read :], len(published)
        return new

    def new_prompts(self) -> list[str]:
        return [str(part.contents.prompt) for part in self.new_parts()]

    def run(self, *parts: TrackedRequest) -> None:
        """A worker has these."""
        for part in parts:
            self._move(part, "running", 1)

    def ended(self) -> list[DoneMessage | FailedMessage]:
        """What the leader was told of lists."""
        return [each.end for each in self.events if isinstance(each, PromptListEnded)]

    def cancelled(self) -> list[str]:
        """The parts that the leader is to cancel."""
        found = [each for each in self.events if isinstance(each, StatusOrCancelReceived)]
        assert all(each.cancel and each.of_part and not each.reply for each in found)
        return [each.key[1] for each in found]

    def finished(self) -> list[tuple[str, str]]:
        """The parts that the leader is to end, and why."""
        found = [each for each in self.events if isinstance(each, EndRequests)]
        return [(each.key[1] if each.key is not None else "", each.error.code) for each in found]

    def _submit(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, RequestReceived):
            self.known.setdefault(event.request.key, event.request)

    def _move(self, part: TrackedRequest, state: Any, attempt: int) -> None:
        known = self.known[part.key]
        known.state, known.worker, known.attempt = state, W1, attempt

    # Workers.

    def say(self, part: TrackedRequest, status: StatusName) -> None:
        self.hear(StatusMessage(*_origin(part), status))

    def speak(
        self,
        part: TrackedRequest,
        index: int,
        *token_ids: int,
        choice: int = 0,
        reason: FinishReason | None = None,
        usage: Usage | None = None,
    ) -> None:
        """New tokens of a choice."""
        self.run(part)
        output = _spoken(choice, index, token_ids, reason)
        self.hear(ChunkMessage(*_origin(part), output, usage))

    def end(
        self,
        part: TrackedRequest,
        index: int,
        *token_ids: int,
        choice: int = 0,
        reason: FinishReason = "stop",
        usage: Usage | None = None,
        timings: Timings = TIMINGS,
        route: dict[str, Any] | None = None,
        warnings: tuple[str, ...] = (),
    ) -> None:
        """The good end of a part, with the last tokens of a choice."""
        self._move(part, "ended", 1)
        output = _spoken(choice, index, token_ids, reason)
        count = usage or Usage(5, 1, index + len(token_ids))
        self.hear(DoneMessage(*_origin(part), count, timings, (output,), route, warnings))

    def answer(self, part: TrackedRequest, *token_ids: int) -> None:
        """The same whole answer in each choice."""
        n = part.contents.n
        for choice in range(n - 1):
            self.speak(part, 0, *token_ids, choice=choice, reason="stop")
        usage = Usage(5, 1, n * len(token_ids))
        self.end(part, 0, *token_ids, choice=n - 1, usage=usage)

    def fail(
        self, part: TrackedRequest, code: str, message: str = "it failed", **fields: Any
    ) -> None:
        """The leader or a worker ends a part."""
        known = self.known[part.key]
        known.state, known.succeeded = "ended", False
        self.hear(FailedMessage(*_origin(part), ErrorDetails.of(code, message, **fields)))

    def hear(self, *messages: StreamMessage) -> None:
        for message in messages:
            self.receive(IncomingMessage(f"{RUNNER}.parts", "", encode(message, multiplex=True)))

    def receive(self, message: IncomingMessage) -> None:
        self._runner.on_message(message)

    def miss(self, inbox: str = INBOX) -> bool:
        """Nobody listens to an inbox; returns whether a message was sent there to find that out,
        since the last one that nobody heard."""
        subject = f"{RUNNER}.probe.{inbox}"
        asked = any(reply == subject for _, _, reply in self.put[self._missed :])
        self._missed = len(self.put)
        if asked:
            self.receive(IncomingMessage(subject, "", b"", no_responders=True))
        return asked

    # Time.

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / _TICK_S)):
            self.clock.now += _TICK_S
            self._runner.tick()

    # Clients.

    def told(self, inbox: str = INBOX) -> list[StreamMessage]:
        return [each for to, messages, _ in self.put if to == inbox for each in messages]

    def chunks(self, inbox: str = INBOX) -> list[ChunkMessage]:
        return [each for each in self.told(inbox) if isinstance(each, ChunkMessage)]

    def statuses(self, inbox: str = INBOX) -> list[str]:
        return [each.status for each in self.told(inbox) if isinstance(each, StatusMessage)]

    def tokens(self, inbox: str = INBOX) -> dict[int, list[int]]:
        """By choice, in order and without a gap."""
        found: dict[int, list[int]] = {}
        for chunk in self.chunks(inbox):
            tokens = found.setdefault(chunk.output.choice, [])
            assert chunk.output.index == len(tokens), "something is missing"
            tokens += chunk.output.token_ids
        return found

    def reasons(self, inbox: str = INBOX) -> dict[int, str]:
        outputs = [chunk.output for chunk in self.chunks(inbox)]
        return {each.choice: each.finish_reason for each in outputs if each.finish_reason}

    def errors(self, inbox: str = INBOX) -> dict[int, ErrorDetails]:
        outputs = [chunk.output for chunk in self.chunks(inbox)]
        return {each.choice: each.error for each in outputs if each.error is not None}

    def done(self, inbox: str = INBOX) -> DoneMessage:
        """The good end, after which nothing was said."""
        end = self.told(inbox)[-1]
        assert isinstance(end, DoneMessage), end
        return end

    def failed(self, inbox: str = INBOX) -> ErrorDetails:
        end = self.told(inbox)[-1]
        assert isinstance(end, FailedMessage), end
        return end.error


def _origin(part: TrackedRequest) -> tuple[Any, int, WorkerId]:
    return part.request_id, 1, W1


def _spoken(
    choice: int, index: int, token_ids: tuple[int, ...], reason: FinishReason | None
) -> ChoiceOutput:
    """Each token is its number in angle brackets."""
    text = "".join(f"<{token}>" for token in token_ids)
    return ChoiceOutput(choice, index, list(token_ids), text, finish_reason=reason)
