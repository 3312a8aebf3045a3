"""One request on this worker, from its dispatch to its end."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from shared.clock import boottime_s
from shared.ids import ClientName, ControllerId, ModelId, RequestId, WorkerId
from shared.messages.base import PRIORITIES, Priority
from shared.messages.conversation import Turn
from shared.messages.dispatch import Dispatch
from shared.messages.model_status import ModelPerformance
from shared.messages.prefixes import PrefixChain, prefix_chain, prefix_links
from shared.messages.prompt_rules import cleaned
from shared.messages.stream import (
    ChoiceOutput,
    ChunkMessage,
    DoneMessage,
    ErrorDetails,
    FailedMessage,
    StatusMessage,
    StatusName,
    StreamMessage,
    Usage,
)
from shared.output_history import OutputHistory
from shared.settings.kv_cache import PromptLineRule
from shared.stream_subscribers import StreamSubscribers
from shared.telemetry import SpanEvent
from shared.telemetry.span import Attributes
from worker.link.facts import SequenceOutput, ToolCallPiece
from worker.requests.active_choice import ActiveChoice
from worker.requests.prompt_token_counts import PromptTokenCounts, request_prompts
from worker.requests.times import RequestTimes

_MAX_TRACE_EVENTS = 128
RequestKey = tuple[ClientName, RequestId]
"""Clients choose their request ids, so only client and id together are unique."""


class ActiveRequest:
    """State of a request. Methods return the messages to send; they send nothing.

    Attributes:
        owner: the leader that gets the events of the request.
        messages: what the model reads; empty if the request has prompts instead.
        fenced: another attempt owns the stream; nothing more may be sent.
        end: the terminal message, once there is one; `ended_at` is on the monotonic clock.
        end_published: the terminal message was published; what is sent after that is a resend.
        differs: the answer differs from what an earlier attempt generated.
        suspect: the request is one of several that may have crashed an engine.
        cached_tokens_reported: the leader knows `cached_tokens`.
        trace_events: chunks of prefill and preemptions; None if the request is not traced.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        owner: ControllerId,
        worker: WorkerId,
        sequences: list[int],
        rules: Sequence[PromptLineRule] = (),
        *,
        traced: bool = False,
    ) -> None:
        """`rules` apply to what the model reads; the request itself stays unchanged."""
        self.dispatch = dispatch
        self.messages = cleaned(dispatch.request.turns, rules)
        self.owner = owner
        self.worker = worker
        self.choices = [self._choice(number, each) for number, each in enumerate(sequences)]
        self.status: StatusName = "queued"
        self.progress: float | None = None
        self.engine: int | None = None
        self.fenced = False
        self.suspect = False
        self.is_newcomer = False
        self.end_published = False
        self.end: DoneMessage | FailedMessage | None = None
        self.ended_at = 0.0
        self.inboxes = StreamSubscribers(dispatch.inboxes, boottime_s())
        self._log = OutputHistory(len(sequences), streams=self.streams)
        before = dispatch.resume
        self.times = RequestTimes(
            time.monotonic(),
            dispatch.elapsed_ms,
            before.first_token_ms if before is not None else None,
        )
        self.last_sent_at = self.times.received_at
        self.cached_tokens_reported = False
        self.trace_events: list[SpanEvent] | None = [] if traced else None
        self._usage_sent = False
        self.differs = False
        self._warnings: list[str] = []

    def _choice(self, number: int, sequence: int) -> ActiveChoice:
        resume, before = self.dispatch.request.resume, self.dispatch.resume
        known_ids = before.token_ids.get(number, []) if before else []
        known_text = before.text_sent.get(number) if before else None
        known_end = before.finish_reasons.get(number) if before else None
        token_ids = list(known_ids or self.dispatch.request.received_ids)
        sent = resume.characters if resume else None
        text_length = sent.text + sent.reasoning + sum(sent.tool_calls) if sent else 0
        return ActiveChoice(
            number,
            sequence,
            token_ids,
            text_length,
            known_ids=known_ids,
            known_text=known_text,
            known_end=known_end,
        )

    @property
    def key(self) -> RequestKey:
        return self.dispatch.client, self.dispatch.request_id

    @property
    def client(self) -> ClientName:
        return self.dispatch.client

    @property
    def model(self) -> ModelId:
        return self.dispatch.model

    @property
    def level(self) -> Priority:
        return self.dispatch.request.level

    @property
    def urgent(self) -> bool:
        """Whether the request starts at once, even if that slows down those that run."""
        return self.level == PRIORITIES[0]

    @property
    def generates(self) -> bool:
        """Whether the answer is generated: not embeddings or scores, and not only the number of
        tokens of the prompt. Nothing else needs a slot in a batch, or is cached."""
        return not (self.embeds or self.dispatch.request.count_only)

    @property
    def embeds(self) -> bool:
        return self.dispatch.request.embeds

    @property
    def session(self) -> tuple[ClientName, str] | None:
        """The key of its session or affinity; clients choose the ids."""
        session = self.dispatch.request.cache_session
        return (self.dispatch.client, session) if session is not None else None

    @cached_property
    def prefixes(self) -> PrefixChain:
        return prefix_chain(self.model, self.dispatch.request, self.messages)

    @cached_property
    def prompt_links(self) -> list[tuple[bytes, float]]:
        """The links of its prompt, each with the share of the prompt that it covers."""
        return self.prefix_links(None)

    def prefix_links(self, answer: Turn | None) -> list[tuple[bytes, float]]:
        """Return the links of its prompt and of an answer: see `shared.messages.prefixes`."""
        return prefix_links(self.model, self.dispatch.request, self.messages, answer)

    @cached_property
    def prompts(self) -> list[PromptTokenCounts]:
        return request_prompts(self.dispatch.request, self.messages)

    def prompt_of(self, choice: ActiveChoice) -> PromptTokenCounts:
        return self.prompts[choice.number // self.dispatch.request.n]

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of the first prompt; 0 while unknown."""
        return self.prompts[0].tokens

    def expected_left_tokens(self, speed: ModelPerformance) -> float:
        """Estimate how many tokens of its prompts are still to be prefilled."""
        return sum(prompt.expected_left_tokens(speed) for prompt in self.prompts)

    @property
    def streams(self) -> bool:
        return self.dispatch.request.stream

    @property
    def is_too_large(self) -> bool:
        """Whether the answer is in one message, and has more bytes than any message may have."""
        return self._log.is_too_large

    @property
    def multiplex(self) -> bool:
        return self.dispatch.request.multiplex

    @property
    def fingerprint(self) -> str:
        return self.dispatch.body_fingerprint

    @property
    def started(self) -> bool:
        """Whether this attempt has generated a token."""
        return self.times.first_token_at is not None

    @property
    def deadline(self) -> float:
        """On the clock of `time.monotonic`."""
        left_ms = self.dispatch.request.timeout_ms - self.dispatch.elapsed_ms
        return self.times.received_at + left_ms / 1000

    @property
    def tokens(self) -> int:
        return sum(choice.tokens for choice in self.choices)

    @property
    def answer(self) -> Turn | None:
        """Its only answer; None if there are several, or not all of it is known here."""
        if len(self.choices) > 1 or self.dispatch.request.resume or not self._log.whole:
            return None
        outputs = list(self._log.since(0, 0))
        return ChoiceOutput.joined(outputs).turn if outputs else None

    @property
    def unfinished(self) -> list[ActiveChoice]:
        return [choice for choice in self.choices if not choice.finished]

    def prepare_admission(self) -> None:
        """Compute what admission needs of the contents: what fails for them fails here."""
        _ = self.prefixes, self.prompts

    def admit(self, engine: int) -> None:
        self.engine = engine
        self.status, self.progress = "prefill", None
        self.times.admitted_at = time.monotonic()

    def preempt(self) -> None:
        self.status, self.progress = "preempted", None
        self._note_event("preempted", {})

    def start_choice(self, choice: ActiveChoice, prompt_tokens: int) -> None:
        """Record the length of a prompt; all choices of the prompt share it."""
        self.prompt_of(choice).tokens = prompt_tokens

    def restore_choice(self, choice: ActiveChoice, tokens: int) -> None:
        """Record how much of a prompt was in KV memory. Only the first choice of each prompt
        counts, and only before the first token."""
        if choice.number % self.dispatch.request.n == 0 and not self.started:
            self.prompt_of(choice).restore(tokens)

    def advance_prompt(self, choice: ActiveChoice, done: int, total: int) -> None:
        """Record how much of a prompt is in the KV cache, restored or computed."""
        self.progress = round(done / total, 3)
        self.prompt_of(choice).left_tokens = total - done
        self._note_event("prefill chunk", {"mlx.prefill.done": done, "mlx.prefill.total": total})

    def _note_event(self, name: str, attributes: Attributes) -> None:
        if self.trace_events is not None and len(self.trace_events) < _MAX_TRACE_EVENTS:
            self.trace_events.append(SpanEvent(name, time.monotonic(), attributes))

    def advance(self, choice: ActiveChoice, output: SequenceOutput) -> list[StreamMessage]:
        """Add an output; returns a chunk, or the terminal message after the last output of the
        last choice. What an earlier attempt sent is not sent again, except its last output, which
        the client may not have received."""
        known = choice.is_known(output)
        has_result = output.embedding is not None or output.score is not None
        if (output.token_ids or has_result) and not known:
            self.times.first_token_at = self.times.first_token_at or time.monotonic()
            self.status, self.progress = "running", None
        is_new = not known or output.index + len(output.token_ids) == len(choice.known_ids)
        choice.add(output)
        self.differs |= known and choice.differs(output)
        part = ChoiceOutput(
            choice=choice.number,
            index=output.index,
            token_ids=output.token_ids,
            text=output.text,
            logprobs=output.logprobs,
            finish_reason=output.finish_reason,
            reasoning=output.reasoning or None,
            tool_calls=[self._call_piece(choice, piece) for piece in output.calls] or None,
            stop_sequence=output.stop_sequence,
            embedding=output.embedding,
            score=output.score,
        )
        self._warnings += [each for each in output.warnings if each not in self._warnings]
        self._log.append(part)
        if not self.streams:
            return [self._whole()] if not self.unfinished else []
        if self.unfinished:
            return [ChunkMessage(*self._origin, part, self._first_usage())] if is_new else []
        return [self._done((part,))]

    def _call_piece(self, choice: ActiveChoice, piece: ToolCallPiece) -> dict[str, Any]:
        """Return a piece of a tool call in OpenAI's format. All attempts give a call the same
        id."""
        function: dict[str, Any] = {"arguments": piece.arguments}
        if piece.name is None:
            return {"index": piece.index, "function": function}
        id = call_id(self.key, choice.number, piece.index)
        function = {"name": piece.name, **function}
        return {"index": piece.index, "id": id, "type": "function", "function": function}

    def replay(self, choice: int | None, from_index: int) -> list[StreamMessage]:
        """Return the stream from a token index on, of one choice or all, and its end if any."""
        messages: list[StreamMessage] = []
        if self.streams:
            messages += [
                ChunkMessage(*self._origin, part) for part in self._log.since(choice, from_index)
            ]
        if isinstance(self.end, DoneMessage) and self.streams:
            messages.append(replace(self.end, outputs=()))
        elif self.end is not None:
            messages.append(self.end)
        return messages

    def accepted_message(self) -> StreamMessage | None:
        """Return the status `accepted`; None without streaming, or after an earlier attempt."""
        before = self.dispatch.retries or self.dispatch.resume
        if not self.streams or before:
            return None
        return StatusMessage(*self._origin, "accepted", seed=self.dispatch.seed)

    def state_message(self) -> StreamMessage | None:
        """Return the current status; None without streaming, or after the end."""
        if not self.streams or self.end is not None:
            return None
        return StatusMessage(*self._origin, self.status, self.progress)

    def fail(self, error: ErrorDetails) -> FailedMessage:
        failed = FailedMessage(*self._origin, error, self._route)
        self._note_end(failed)
        return failed

    def _note_end(self, end: DoneMessage | FailedMessage) -> None:
        self.end = end
        self.ended_at = time.monotonic()

    @property
    def _origin(self) -> tuple[RequestId, int, WorkerId]:
        return self.dispatch.request_id, self.dispatch.attempt, self.worker

    @property
    def _route(self) -> dict[str, Any] | None:
        """How this worker was selected, if the client asked for that."""
        route = self.dispatch.route
        return route.model_dump(exclude_none=True) if route is not None else None

    def _first_usage(self) -> Usage | None:
        """Return the usage of the prompt for the first chunk; None for the others."""
        if self._usage_sent:
            return None
        self._usage_sent = True
        return self._usage(0)

    def _whole(self) -> DoneMessage:
        """Return the only message of a request without streaming. If the request was cancelled
        before this attempt had replayed the tokens of an earlier one, they are missing."""
        resumed = len(self.dispatch.request.received_ids)
        outputs = tuple(
            replace(each, index=resumed) if not each.token_ids else each
            for each in self._log.joined()
        )
        sent = sum(resumed + len(each.token_ids) for each in outputs)
        done = replace(self._done(outputs), usage=self._usage(min(sent, self.tokens)))
        self.end = done
        return done

    def _done(self, outputs: tuple[ChoiceOutput, ...]) -> DoneMessage:
        usage = self._usage(self.tokens)
        warnings = tuple(self._warnings)
        done = DoneMessage(
            *self._origin, usage, self.times.timings(), outputs, self._route, warnings
        )
        self._note_end(done)
        return done

    def _usage(self, completion_tokens: int) -> Usage:
        prompt_tokens = sum(prompt.tokens for prompt in self.prompts)
        reasoning_tokens = sum(choice.reasoning_tokens for choice in self.choices)
        return Usage(prompt_tokens, self.cached_tokens, completion_tokens, reasoning_tokens)

    @property
    def cached_tokens(self) -> int:
        """Tokens of its prompts that were cached on the worker of the first attempt."""
        before = self.dispatch.resume
        if before is not None and before.cached_tokens is not None:
            return before.cached_tokens
        return sum(prompt.cached_tokens for prompt in self.prompts)


def call_id(request: RequestKey, choice: int, index: int) -> str:
    """Return the id of a tool call, the same for every attempt."""
    client, request_id = request
    key = f"{client}\0{request_id}\0{choice}\0{index}".encode()
    return f"call_{hashlib.blake2b(key, digest_size=12).hexdigest()}"
