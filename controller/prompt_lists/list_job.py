"""A list of prompts that is served in parts: its parts, and the one stream of its client."""

import time
from dataclasses import dataclass, field, replace
from typing import Any

from controller.prompt_lists.list_parts import PromptListPart
from controller.requests.request import RequestKey, TrackedRequest
from shared.ids import ClientName, RequestId
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
)
from shared.output_history import OutputHistory
from shared.stream_subscribers import StreamSubscribers

_PROGRESS: tuple[StatusName | None, ...] = (
    None, "accepted", "queued", "loading", "preempted", "migrating", "prefill", "running"
)  # fmt: skip


@dataclass(slots=True, eq=False)
class PromptListJob:
    """
    Attributes:
        whole: the request of the client.
        log: of the stream, for inboxes that are attached later.
        waiting: numbers of the parts that are not submitted, in order.
        rejected: why the last submitted part was rejected; None once another part ended since.
        not_before: until then no part is submitted.
        capacity: batch slots of the workers that can serve it, as of `counted_at`.
        begun: a worker accepted one of its parts.
        sent_at: when the last message was sent to the client.
        encoded_end: `end` as its client gets it: up to a whole answer, which takes long to encode.
        weighed_bytes: of the log, that the leader knows of.
        least_bytes: that the whole answer has as JSON, by what is there of it.
        next_index: of each choice.
        unfinished: numbers of the choices without a finish reason.
    """

    whole: TrackedRequest
    streams: bool
    multiplex: bool
    parts: list[PromptListPart]
    inboxes: StreamSubscribers
    log: OutputHistory
    waiting: list[int]
    rejected: ErrorDetails | None = None
    not_before: float = 0.0
    capacity: int = 0
    counted_at: float = float("-inf")
    begun: bool = False
    sent_at: float = 0.0
    end: DoneMessage | FailedMessage | None = None
    encoded_end: bytes = b""
    ended_at: float = 0.0
    weighed_bytes: int = 0
    least_bytes: int = 0
    usage_sent: bool = False
    next_index: list[int] = field(default_factory=list)
    unfinished: set[int] = field(default_factory=set)

    @classmethod
    def start(
        cls, whole: TrackedRequest, parts: list[PromptListPart], awake_now: float
    ) -> "PromptListJob":
        """Return a list of which no part is submitted yet.

        Args:
            awake_now: of `shared.clock.boottime_s`.
        """
        body = whole.contents
        return cls(
            whole,
            body.stream,
            body.multiplex,
            parts,
            StreamSubscribers(whole.inboxes, awake_now),
            OutputHistory(body.choices, streams=body.stream),
            [part.number for part in parts],
            sent_at=time.monotonic(),
            next_index=[0] * body.choices,
            unfinished=set(range(body.choices)),
        )

    @property
    def origin(self) -> tuple[RequestId, int, None]:
        return self.whole.request_id, self.whole.attempt, None

    @property
    def submitted(self) -> list[PromptListPart]:
        """The parts that the leader has."""
        return [part for part in self.parts if part.request is not None]

    @property
    def is_answered(self) -> bool:
        return all(part.answered for part in self.parts)

    # Outputs.

    def is_new(self, output: ChoiceOutput) -> bool:
        """Whether an output has tokens or an end that an earlier try did not have."""
        end = output.index + len(output.token_ids)
        ends = output.finish_reason is not None and output.choice in self.unfinished
        return end > self.next_index[output.choice] or ends

    def chunk(self, output: ChoiceOutput, usage: Usage | None) -> ChunkMessage:
        """Record an output and return the message for the client. The first chunk with a usage has
        its prompt tokens."""
        self.log.append(output)
        self.least_bytes += _least_bytes(output)
        self.next_index[output.choice] = output.index + len(output.token_ids)
        if output.finish_reason is not None:
            self.unfinished.discard(output.choice)
        self.whole.reported_tokens += len(output.token_ids)
        was_sent, self.usage_sent = self.usage_sent, self.usage_sent or usage is not None
        first = usage if not was_sent else None
        if first is not None:
            first = replace(first, completion_tokens=0)
        return ChunkMessage(*self.origin, output, first)

    # Statuses.

    def ends_of_choices(self, part: PromptListPart, reason: FinishReason) -> list[ChoiceOutput]:
        """Return an output without tokens for each choice of a part that has no finish reason."""
        return [
            ChoiceOutput(n, self.next_index[n], [], "", finish_reason=reason, error=part.error)
            for n in part.numbers
            if n in self.unfinished
        ]

    def accepted_status(self) -> StatusMessage:
        return StatusMessage(*self.origin, "accepted", seed=self.whole.seed)

    def status(self) -> StatusMessage:
        """Return the status of the part that has advanced most."""
        if any(self.next_index):
            return StatusMessage(*self.origin, "running")
        known = [part.assembler for part in self.submitted if part.assembler is not None]
        furthest = max(known, key=lambda each: _PROGRESS.index(each.status), default=None)
        if furthest is None or furthest.status in (None, "accepted"):
            return StatusMessage(*self.origin, "queued")
        return StatusMessage(*self.origin, furthest.status, furthest.progress)

    # The end.

    def done(self) -> DoneMessage:
        usages = self._usage_by_prompt()
        usage = Usage(
            sum(each.prompt_tokens for each in usages),
            sum(each.cached_tokens for each in usages),
            sum(self.next_index),
            sum(part.usage.reasoning_tokens for part in self.parts if part.usage is not None),
        )
        outputs = () if self.streams else self.log.joined()
        warnings = tuple(dict.fromkeys(each for part in self.parts for each in part.warnings))
        return DoneMessage(*self.origin, usage, self._timings(), outputs, self._route(), warnings)

    def failed(self, error: ErrorDetails) -> FailedMessage:
        return FailedMessage(*self.origin, error, self._route())

    def prompt_error(self, part: PromptListPart, error: ErrorDetails) -> ErrorDetails:
        """Return the error of a part with the index of its prompt, unless it is about another
        field."""
        if self.whole.contents.embeds:
            return error.counted_from(part.first, alone=part.choices == 1)
        if error.param not in (None, "prompt") or len(self.whole.contents.prompts) < 2:
            return error
        text = error.message.removeprefix("prompt: ")
        return replace(error, message=f"prompt.{part.prompt}: {text}")

    def _usage_by_prompt(self) -> list[Usage]:
        """Return one usage per prompt, although a prompt may have several parts."""
        usages: dict[int, Usage] = {}
        for part in self.parts:
            if part.usage is not None:
                usages.setdefault(part.prompt, part.usage)
        return list(usages.values())

    def _timings(self) -> Timings:
        """Return the timings of the part whose first token came first; decoding lasts from there
        until now."""
        elapsed_ms = round(self.whole.elapsed_ms(time.monotonic()), 2)
        never = Timings(elapsed_ms, 0.0, elapsed_ms, 0.0)
        known = [part.timings for part in self.parts if part.timings is not None]
        first = min(known, key=lambda timings: timings.ttft_ms, default=never)
        return replace(first, decode_ms=round(max(0.0, elapsed_ms - first.ttft_ms), 2))

    def _route(self) -> dict[str, Any] | None:
        """Return the route of the first part that has one."""
        return next((part.route for part in self.parts if part.route is not None), None)


_LEAST_TOKEN_BYTES = 2
_LEAST_LOGPROB_BYTES = 20
_LEAST_NUMBER_BYTES = 4
"""Of one number of a vector: `0.0,`."""
_PACKED_CHARACTERS = 6
"""Of one number of a vector, in base64, at most."""


def _least_bytes(output: ChoiceOutput) -> int:
    """Return less than the JSON of an output has, so that no answer is refused that fits."""
    logprobs = sum(1 + len(entry.get("top", ())) for entry in output.logprobs or ())
    return (
        len(output.text)
        + len(output.reasoning or "")
        + _LEAST_TOKEN_BYTES * len(output.token_ids)
        + _LEAST_LOGPROB_BYTES * logprobs
        + _LEAST_NUMBER_BYTES * (len(output.embedding or "") // _PACKED_CHARACTERS)
    )


@dataclass(frozen=True, slots=True)
class PromptListReplay:
    """The stream of a list, for one more inbox or once more, from its start."""

    job: PromptListJob
    inbox: str

    @property
    def client(self) -> ClientName:
        return self.job.whole.client

    @property
    def key(self) -> tuple[RequestKey, str]:
        return self.job.whole.key, self.inbox

    @property
    def is_whole(self) -> bool:
        return True

    def messages(self) -> list[StreamMessage]:
        """Return what is there of the stream now."""
        job = self.job
        messages: list[StreamMessage] = []
        if job.streams:
            if job.begun:
                messages.append(job.accepted_status())
            messages += [ChunkMessage(*job.origin, output) for output in job.log.since(None, 0)]
        if job.end is not None:
            messages.append(job.end)
        return messages
