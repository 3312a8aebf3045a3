"""One request on this worker, from its dispatch to its end."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from shared.clock import awake_or_asleep
from shared.ids import ClientName, ControllerId, ModelId, RequestId, WorkerId
from shared.inboxes import Inboxes
from shared.messages.control import ClaimedRequest, ClaimedState
from shared.messages.dispatch import Continuation, Dispatch, choice_seed
from shared.messages.events import (
    ModelSpeed,
    RequestFailed,
    RequestFinished,
    TokensEmitted,
)
from shared.messages.prefixes import PrefixChain, prefix_chain, prefix_links
from shared.messages.prompt_rules import cleaned
from shared.messages.request import PRIORITIES, Priority, Turn
from shared.messages.stream import (
    ChoiceOutput,
    Chunk,
    Done,
    Failed,
    FinishReason,
    Status,
    StatusName,
    StreamError,
    StreamMessage,
    Timings,
    Usage,
)
from shared.settings.kv_cache import PromptRule
from shared.stream_log import MAX_BYTES, StreamLog
from worker.link.facts import CallPiece, Output
from worker.link.orders import Calling, Sampling, SentCharacters, Submit
from worker.requests.prompts import RequestPrompt, request_prompts

_CLAIMED_STATES: dict[type[Any], ClaimedState] = {
    type(None): "running",
    Done: "finished",
    Failed: "failed",
}

RequestKey = tuple[ClientName, RequestId]
"""Ids are the clients' own, so only both together are unique."""


@dataclass(slots=True)
class RequestChoice:
    """One answer of a request: one sequence of the engine.

    Attributes:
        token_ids: of its answer, by earlier attempts too.
        text_length: in characters of all channels, as far as it was put out here.
        reasoning_tokens: of its tokens, as far as it was put out here.
        behind: the index up to which it was.
        finish_reason: how it ended, once it has.
        known_ids: what an earlier attempt generated, and the owner knows.
        known_text: how many characters that made, where it is known.
        known_end: how it ended there, where it did.
    """

    number: int
    sequence: int
    token_ids: list[int]
    text_length: int
    behind: int = 0
    reasoning_tokens: int = 0
    known_ids: Sequence[int] = ()
    known_text: int | None = None
    known_end: FinishReason | None = None
    finish_reason: FinishReason | None = None

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def take(self, output: Output) -> None:
        """Note what was put out; what is known already is not counted twice."""
        behind = output.index + len(output.token_ids)
        self.token_ids += output.token_ids[len(output.token_ids) - max(0, behind - self.tokens) :]
        self.behind = behind
        self.text_length += characters(output)
        self.reasoning_tokens = output.reasoning_tokens
        self.finish_reason = output.finish_reason

    @property
    def text_sent(self) -> int | None:
        """How many characters its tokens made; None where that is not known, or where there are
        more of an end that comes without a token."""
        if self.finished or self.behind < len(self.known_ids):
            return self.known_text
        return self.text_length

    def is_known(self, output: Output) -> bool:
        """Whether an output of it says nothing but what an earlier attempt said."""
        if output.finish_reason is not None and not output.token_ids:
            return self.known_end is not None
        return 0 < output.index + len(output.token_ids) <= len(self.known_ids)

    def differs(self, output: Output) -> bool:
        """Whether an output, taken in already, says otherwise what an earlier attempt said."""
        behind = output.index + len(output.token_ids)
        if output.token_ids != list(self.known_ids[output.index : behind]):
            return True
        at_its_end = behind == len(self.known_ids) and output.finish_reason is None
        return at_its_end and self.known_text not in (None, self.text_length)


class ActiveRequest:
    """State of a request. Methods return the messages to send; they send nothing.

    Attributes:
        fenced: the stream is another attempt's now; nothing may be sent any more.
        end: the terminal message, once there is one; `ended_at` on the monotonic clock.
        told: the end was sent; what is sent now was said before.
        differs: it was generated otherwise by an earlier attempt.
        announces: its client hears `accepted` from here.
        suspect: an engine ended over it, and over others, and nobody knows yet over which.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        owner: ControllerId,
        worker: WorkerId,
        sequences: list[int],
        rules: Sequence[PromptRule] = (),
        *,
        announces: bool = True,
    ) -> None:
        """`rules` are for what the model gets to read; the request stays as it came."""
        self.dispatch = dispatch
        self._messages = cleaned(dispatch.request.turns, rules)
        self.owner = owner
        self.worker = worker
        self.announces = announces
        self.choices = [self._choice(number, each) for number, each in enumerate(sequences)]
        self.status: StatusName = "queued"
        self.progress: float | None = None
        self.engine: int | None = None
        self.fenced = False
        self.suspect = False
        self.told = False
        self.end: Done | Failed | None = None
        self.ended_at = 0.0
        self.inboxes = Inboxes(dispatch.inboxes, awake_or_asleep())
        self._log = StreamLog(len(sequences), max_bytes=MAX_BYTES if self.streams else None)
        self.received_at = time.monotonic()
        self.last_sent_at = self.received_at
        self._admitted_at: float | None = None
        self._first_token_at: float | None = None
        self._usage_told = False
        self._cached_told = False
        self.differs = False
        self._warnings: list[str] = []

    def _choice(self, number: int, sequence: int) -> RequestChoice:
        resume, before = self.dispatch.request.resume, self.dispatch.resume
        known_ids = before.token_ids.get(number, []) if before else []
        known_text = before.text_sent.get(number) if before else None
        known_end = before.finish_reasons.get(number) if before else None
        token_ids = list(known_ids or self.dispatch.request.heard_ids)
        sent = resume.characters if resume else None
        text_length = sent.text + sent.reasoning + sum(sent.tool_calls) if sent else 0
        return RequestChoice(
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
    def model(self) -> ModelId:
        return self.dispatch.model

    @property
    def level(self) -> Priority:
        return self.dispatch.request.level

    @property
    def urgent(self) -> bool:
        """Whether it does not wait for others to become faster."""
        return self.level == PRIORITIES[0]

    @property
    def counts_only(self) -> bool:
        """Whether its prompt is only counted: that needs no place in a batch."""
        return self.dispatch.request.count_only

    @property
    def session(self) -> tuple[ClientName, str] | None:
        """Of its session or its affinity; these are the clients' own."""
        session = self.dispatch.request.cache_session
        return (self.dispatch.client, session) if session is not None else None

    @cached_property
    def prefixes(self) -> PrefixChain:
        return prefix_chain(self.model, self.dispatch.request, self._messages)

    @cached_property
    def prompt_links(self) -> list[tuple[bytes, float]]:
        """The links of its prompt, and which share of it each is."""
        return self.prefix_links(None)

    def prefix_links(self, answer: Turn | None) -> list[tuple[bytes, float]]:
        """The links of its prompt, and of an answer to it: see `shared.messages.prefixes`."""
        return prefix_links(self.model, self.dispatch.request, self._messages, answer)

    @cached_property
    def prompts(self) -> list[RequestPrompt]:
        return request_prompts(self.dispatch.request, self._messages)

    def prompt_of(self, choice: RequestChoice) -> RequestPrompt:
        return self.prompts[choice.number // self.dispatch.request.n]

    @property
    def prompt_tokens(self) -> int:
        """Of its first prompt; 0 while nobody knows."""
        return self.prompts[0].tokens

    def expected_left_tokens(self, speed: ModelSpeed) -> float:
        """Of its prompts, still to be computed; as far as can be said."""
        return sum(prompt.expected_left_tokens(speed) for prompt in self.prompts)

    @property
    def streams(self) -> bool:
        return self.dispatch.request.stream

    @property
    def multiplex(self) -> bool:
        return self.dispatch.request.multiplex

    @property
    def fingerprint(self) -> str:
        return self.dispatch.body_fingerprint

    @property
    def started(self) -> bool:
        """Whether any token was generated here."""
        return self._first_token_at is not None

    @property
    def deadline(self) -> float:
        """On the clock of `time.monotonic`."""
        left_ms = self.dispatch.request.timeout_ms - self.dispatch.elapsed_ms
        return self.received_at + left_ms / 1000

    @property
    def wait_s(self) -> float:
        """In the queue of this worker, until it was admitted or until now."""
        return (self._admitted_at or time.monotonic()) - self.received_at

    @property
    def tokens(self) -> int:
        return sum(choice.tokens for choice in self.choices)

    @property
    def answer(self) -> Turn | None:
        """Its only answer; None where there are several, or not all is known."""
        if len(self.choices) > 1 or self.dispatch.request.resume or not self._log.whole:
            return None
        outputs = list(self._log.since(0, 0))
        return ChoiceOutput.joined(outputs).turn if outputs else None

    @property
    def unfinished(self) -> list[RequestChoice]:
        return [choice for choice in self.choices if not choice.finished]

    def order(self, choice: RequestChoice) -> Submit:
        """What an engine is told to generate for one choice."""
        body = self.dispatch.request
        prompt = body.prompts[choice.number // body.n] if body.prompts else None
        # What the tokens were likely to be is only known to who generates them: all over again.
        replays = body.logprobs is None
        return Submit(
            sequence=choice.sequence,
            model=self.model,
            messages=self._messages or None,
            text=prompt if isinstance(prompt, str) else None,
            token_ids=prompt if isinstance(prompt, list) else None,
            max_tokens=body.max_tokens,
            stop=body.stop_strings,
            stop_token_ids=body.stop_token_ids,
            ignore_eos=body.ignore_eos,
            sampling=Sampling(
                temperature=body.temperature,
                top_p=body.top_p,
                top_k=body.top_k,
                min_p=body.min_p,
                repetition_penalty=body.repetition_penalty,
                presence_penalty=body.presence_penalty,
                frequency_penalty=body.frequency_penalty,
                logit_bias=body.logit_bias,
                seed=choice_seed(self.dispatch.seed, choice.number),
                logprobs=body.logprobs,
            ),
            priority=PRIORITIES.index(self.level),
            resumed_ids=body.heard_ids,
            sent=SentCharacters(**body.resume.characters.model_dump())
            if body.resume
            else SentCharacters(),
            template_values=body.chat_template_kwargs,
            reasoning_effort=body.reasoning_effort,
            thinking_budget=body.thinking_budget,
            continues=body.continue_final_message,
            debug=body.debug,
            calling=self._calling,
            structure=body.structure,
            replayed_ids=list(choice.known_ids[len(body.heard_ids) :]) if replays else [],
            ended=choice.known_end if replays else None,
            count_only=body.count_only,
            session=body.cache_session,
        )

    @property
    def _calling(self) -> Calling | None:
        body = self.dispatch.request
        tools = [tool.model_dump(exclude_none=True) for tool in body.usable_tools]
        forced = body.forced_tool
        if not tools:
            return None
        return Calling(tools, forced, body.must_call, body.parallel_tool_calls)

    def admit(self, engine: int) -> None:
        self.engine = engine
        self.status, self.progress = "prefill", None
        self._admitted_at = time.monotonic()

    def preempt(self) -> None:
        """The engine goes on with it later."""
        self.status, self.progress = "preempted", None

    def start_choice(self, choice: RequestChoice, prompt_tokens: int) -> None:
        """Note what the engine found out about a prompt; counted once for all its choices."""
        self.prompt_of(choice).tokens = prompt_tokens

    def restore_choice(self, choice: RequestChoice, tokens: int) -> None:
        """Note how much of a prompt was in the KV memory: what its first choice found, before
        that began."""
        if choice.number % self.dispatch.request.n == 0 and self._first_token_at is None:
            self.prompt_of(choice).restored(tokens)

    def advance_prompt(self, choice: RequestChoice, done: int, total: int) -> None:
        """Note how much of a prompt is in the KV cache, kept or computed."""
        self.progress = round(done / total, 3)
        self.prompt_of(choice).left_tokens = total - done

    def advance(self, choice: RequestChoice, output: Output) -> list[StreamMessage]:
        """Take in tokens: a chunk, or the end when it was the last of the last choice. What an
        earlier attempt said is not said again, but for the last of it: that may not have left."""
        known = choice.is_known(output)
        if output.token_ids and not known:
            self._first_token_at = self._first_token_at or time.monotonic()
            self.status, self.progress = "running", None
        unsaid = not known or output.index + len(output.token_ids) == len(choice.known_ids)
        choice.take(output)
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
        )
        self._warnings += [each for each in output.warnings if each not in self._warnings]
        self._log.append(part)
        if not self.streams:
            return [self._whole()] if not self.unfinished else []
        if self.unfinished:
            return [Chunk(*self._origin, part, self._first_usage())] if unsaid else []
        return [self._done((part,))]

    def _call_piece(self, choice: RequestChoice, piece: CallPiece) -> dict[str, Any]:
        """A piece of a tool call as OpenAI's clients know it. Its id is the same whichever attempt
        makes it."""
        function: dict[str, Any] = {"arguments": piece.arguments}
        if piece.name is None:
            return {"index": piece.index, "function": function}
        id = call_id(self.key, choice.number, piece.index)
        function = {"name": piece.name, **function}
        return {"index": piece.index, "id": id, "type": "function", "function": function}

    def replay(self, choice: int | None, from_index: int) -> list[StreamMessage]:
        """What was said from a token index on, of one choice or all, and the end if any."""
        said: list[StreamMessage] = []
        if self.streams:
            said += [Chunk(*self._origin, part) for part in self._log.since(choice, from_index)]
        if isinstance(self.end, Done) and self.streams:
            said.append(replace(self.end, outputs=()))
        elif self.end is not None:
            said.append(self.end)
        return said

    def emitted(self, choice: RequestChoice, output: Output) -> TokensEmitted | None:
        """What the owner is told of an output, before the client gets it; None where it knows."""
        ended = output.finish_reason if len(self.choices) > 1 and not choice.known_end else None
        is_new = not choice.is_known(output) and bool(output.token_ids or characters(output))
        if not (is_new or ended):
            return None
        is_first, self._cached_told = not self._cached_told, True
        return TokensEmitted(
            request_id=self.dispatch.request_id,
            client=self.dispatch.client,
            attempt=self.dispatch.attempt,
            choice=choice.number,
            index=output.index,
            token_ids=output.token_ids,
            text_sent=choice.text_length,
            finish_reason=ended,
            cached_tokens=self._cached_tokens if is_first else None,
        )

    def contents(self) -> Dispatch:
        """The request as a leader shall know it that claimed this worker: what was emitted is where
        another attempt would go on."""
        known = {choice.number: choice for choice in self.choices if choice.token_ids}
        resume = Continuation(
            token_ids={number: choice.token_ids for number, choice in known.items()},
            text_sent={
                number: choice.text_sent
                for number, choice in known.items()
                if choice.text_sent is not None
            },
            finish_reasons={
                choice.number: choice.finish_reason
                for choice in self.choices
                if choice.finish_reason is not None
            },
            first_token_ms=self._first_token_ms,
            cached_tokens=self._cached_tokens,
        )
        return self.dispatch.model_copy(
            update={
                "inboxes": list(self.inboxes),
                "elapsed_ms": round(self._ms_at(time.monotonic()), 3),
                "resume": resume if known else None,
            }
        )

    def finished_event(self) -> RequestFinished:
        """What the owner is told of the end."""
        return RequestFinished(
            request_id=self.dispatch.request_id,
            client=self.dispatch.client,
            attempt=self.dispatch.attempt,
        )

    def failed_event(
        self, error: StreamError, *, terminal_sent: bool, suspect: bool = False
    ) -> RequestFailed:
        """What the owner is told of the end; without a terminal message, it gets it back."""
        return RequestFailed(
            request_id=self.dispatch.request_id,
            client=self.dispatch.client,
            attempt=self.dispatch.attempt,
            code=error.code,
            message=error.message,
            retry_after_ms=error.retry_after_ms,
            terminal_sent=terminal_sent,
            suspect=suspect,
        )

    def claimed(self, returned: RequestFailed | None = None) -> ClaimedRequest:
        """What a leader is told that claims this worker.

        Args:
            returned: why it went back.
        """
        dispatch, state, failure = self.dispatch, _CLAIMED_STATES[type(self.end)], returned
        if isinstance(self.end, Failed):
            failure = self.failed_event(self.end.error, terminal_sent=True)
        return ClaimedRequest(
            client=dispatch.client,
            request_id=dispatch.request_id,
            attempt=dispatch.attempt,
            state="returned" if returned is not None else state,
            skill=dispatch.skill,
            model=dispatch.model,
            session_id=dispatch.request.turn_of,
            fingerprint=self.fingerprint,
            tokens=self.tokens,
            failure=failure,
            retries=dispatch.retries,
            migrations=dispatch.migrations,
            crashes=dispatch.crashes,
        )

    def accepted_message(self) -> StreamMessage | None:
        """For clients that stream: from now on the request is answered for."""
        before = self.dispatch.retries or self.dispatch.resume
        if not self.streams or before or not self.announces:
            return None
        return Status(*self._origin, "accepted", seed=self.dispatch.seed)

    def state_message(self) -> StreamMessage | None:
        """The present status, for clients that stream."""
        if not self.streams or self.end is not None:
            return None
        return Status(*self._origin, self.status, self.progress)

    def fail(self, error: StreamError) -> Failed:
        failed = Failed(*self._origin, error, self._route)
        self._note_end(failed)
        return failed

    def _note_end(self, end: Done | Failed) -> None:
        self.end = end
        self.ended_at = time.monotonic()

    @property
    def _origin(self) -> tuple[RequestId, int, WorkerId]:
        return self.dispatch.request_id, self.dispatch.attempt, self.worker

    @property
    def _route(self) -> dict[str, Any] | None:
        """How this worker was chosen, where the client wants to know."""
        route = self.dispatch.route
        return route.model_dump(exclude_none=True) if route is not None else None

    def _first_usage(self) -> Usage | None:
        """What its prompt has, for the first chunk."""
        if self._usage_told:
            return None
        self._usage_told = True
        return self._usage(0)

    def _whole(self) -> Done:
        """The one message of a request that does not stream. What an earlier attempt generated is
        not in it where it was cancelled before that was put out again here."""
        heard = len(self.dispatch.request.heard_ids)
        outputs = tuple(
            replace(each, index=heard) if not each.token_ids else each
            for each in self._log.joined()
        )
        told = sum(heard + len(each.token_ids) for each in outputs)
        done = replace(self._done(outputs), usage=self._usage(min(told, self.tokens)))
        self.end = done
        return done

    def _done(self, outputs: tuple[ChoiceOutput, ...]) -> Done:
        usage = self._usage(self.tokens)
        warnings = tuple(self._warnings)
        done = Done(*self._origin, usage, self._timings(), outputs, self._route, warnings)
        self._note_end(done)
        return done

    def _usage(self, completion_tokens: int) -> Usage:
        prompt_tokens = sum(prompt.tokens for prompt in self.prompts)
        reasoning_tokens = sum(choice.reasoning_tokens for choice in self.choices)
        return Usage(prompt_tokens, self._cached_tokens, completion_tokens, reasoning_tokens)

    @property
    def _cached_tokens(self) -> int:
        """Of its prompts, those that were kept where it began."""
        before = self.dispatch.resume
        if before is not None and before.cached_tokens is not None:
            return before.cached_tokens
        return sum(prompt.cached_tokens for prompt in self.prompts)

    @property
    def _first_token_ms(self) -> float | None:
        """From acceptance to its first token, whichever attempt that was."""
        before = self.dispatch.resume
        if before is not None and before.first_token_ms is not None:
            return before.first_token_ms
        return self._ms_at(self._first_token_at) if self._first_token_at is not None else None

    def _ms_at(self, moment: float) -> float:
        """From acceptance to a moment on the clock of `time.monotonic`."""
        return (moment - self.received_at) * 1000 + self.dispatch.elapsed_ms

    def _timings(self) -> Timings:
        """Of an attempt that went on with another's answer: when that had its first token, and
        how long this one waited and prefilled."""
        now = time.monotonic()
        admitted = self._admitted_at or now
        first = self._first_token_at or now
        before = self.dispatch.resume
        goes_on = before is not None and before.first_token_ms is not None
        first_ms, taken_ms = self._first_token_ms, self._ms_at(now)
        ttft_ms = taken_ms if first_ms is None else first_ms
        return Timings(
            queue_ms=round(self._ms_at(admitted) - goes_on * self.dispatch.elapsed_ms, 2),
            prefill_ms=round((first - admitted) * 1000, 2),
            ttft_ms=round(ttft_ms, 2),
            decode_ms=round(taken_ms - ttft_ms, 2),
        )


def characters(output: Output) -> int:
    """Of its content, reasoning and calls."""
    calls = sum(len(call.arguments) for call in output.calls)
    return len(output.text) + len(output.reasoning) + calls


def call_id(request: RequestKey, choice: int, index: int) -> str:
    """Of a tool call: the same from whichever attempt."""
    client, request_id = request
    named = f"{client}\0{request_id}\0{choice}\0{index}".encode()
    return f"call_{hashlib.blake2b(named, digest_size=12).hexdigest()}"
