"""One sequence while it is generated: its token index, its outputs, its end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shared.messages.stream import FinishReason
from worker.answer.answer import AnswerDecoder
from worker.answer.constraint import AnswerMatcher
from worker.answer.parser import AnswerDelta, Channel
from worker.answer.text import REPLACEMENT, Decode
from worker.link.facts import SequenceOutput, ToolCallPiece
from worker.link.orders import SubmitSequence


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of the sampled token, and (id, value) of the likeliest, best first."""

    sampled: float
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """One new token of a sequence; `token_id` is None if the sequence ended with an end token,
    `end_id`, which is not part of the output."""

    sequence: int
    token_id: int | None
    finish_reason: FinishReason | None
    logprobs: TokenLogprobs | None = None
    end_id: int | None = None


TokenBytes = Callable[[int], bytes]
"""Returns the UTF-8 bytes of a token, which may be a part of a character."""


class OutputBuilder:
    """Turns the tokens of one sequence into outputs. Belongs to one thread at a time.

    Args:
        max_tokens: of the answer, including the tokens of earlier attempts.
        decode, token_bytes: used in the entries of log-probabilities.
    """

    def __init__(
        self,
        order: SubmitSequence,
        answer: AnswerDecoder,
        max_tokens: int,
        decode: Decode,
        token_bytes: TokenBytes | None = None,
    ) -> None:
        self.id = order.sequence
        self.model = order.model
        self._decode = decode
        self._token_bytes = token_bytes
        self._logprobs = order.sampling.logprobs
        self._index = len(order.resumed_ids)
        self._resumed_ids, self._replayed_ids = order.resumed_ids, order.replayed_ids
        self._ended = order.ended
        self._left = max_tokens - len(order.answer_ids)
        self._answer = answer

    @property
    def constraint(self) -> AnswerMatcher | None:
        """The constraint on its tokens, if any."""
        return self._answer.constraint

    def decode_with(self, decode: Decode) -> None:
        """Replace the decoder, before another thread with its own tokenizer takes over."""
        self._decode = decode
        self._answer.decode_with(decode)

    def replay(self) -> list[SequenceOutput]:
        """Return the outputs of the tokens that an earlier attempt generated, one per token; the
        last one has a finish reason if nothing is left to generate. Must be called first."""
        self._answer.resume(self._resumed_ids)
        outputs: list[SequenceOutput] = []
        reason = "length" if self._left <= 0 else self._ended
        last = len(self._replayed_ids) - 1
        for number, token_id in enumerate(self._replayed_ids):
            finish: FinishReason | None = None
            if number == last and reason == "length":
                finish = "length"
            outputs.append(self.advance(GeneratedToken(self.id, token_id, finish)))
            if outputs[-1].finish_reason is not None:
                return outputs
        stopped = self._answer.stopped or self._answer.ended
        if stopped or reason is not None:
            outputs.append(self._output([], self._answer.finish(), "stop" if stopped else reason))
        return outputs

    def advance(self, token: GeneratedToken) -> SequenceOutput:
        """Return the output of the next token; `finish_reason` is set if it is the last."""
        if token.token_id is None:
            return self._output([], self._answer.finish(token.end_id), "stop")
        before = self._answer.channel
        delta = self._answer.push(token.token_id)
        reason: FinishReason | None = None
        if self._answer.stopped or self._answer.ended:
            reason = "stop"
            delta += self._answer.finish()
        elif token.finish_reason is not None:
            reason = token.finish_reason
            delta += self._answer.finish()
            if self._answer.stopped:
                reason = "stop"
        logprobs = None
        if self._logprobs is not None and token.logprobs is not None:
            entry = self._logprob(token.token_id, token.logprobs, self._logprobs)
            logprobs = [{**entry, "channel": _channel(before, self._answer.channel)}]
        return self._output([token.token_id], delta, reason, logprobs)

    @property
    def problem(self) -> str | None:
        """Why generation cannot continue; None while it can."""
        return self._answer.problem

    def cancel(self) -> SequenceOutput:
        """Return the last output of a cancelled sequence."""
        return self._output([], self._answer.finish(), "cancelled")

    def _output(
        self,
        token_ids: list[int],
        delta: AnswerDelta,
        reason: FinishReason | None,
        logprobs: list[dict[str, Any]] | None = None,
    ) -> SequenceOutput:
        stop = self._answer.stop_sequence if reason == "stop" else None
        if reason == "stop" and stop is None and self._answer.has_calls:
            reason = "tool_calls"
        calls = [ToolCallPiece(call.index, call.arguments, call.name) for call in delta.calls]
        output = SequenceOutput(
            self.id,
            self._index,
            token_ids,
            delta.text,
            reason,
            logprobs,
            stop,
            delta.reasoning,
            calls,
            delta.warnings,
            self._answer.reasoning_tokens,
        )
        self._index += len(token_ids)
        return output

    def _logprob(self, token_id: int, logprobs: TokenLogprobs, top: int) -> dict[str, Any]:
        """Return the log-probability of a token and of the `top` likeliest, in wire format."""
        entry = self._entry(token_id, logprobs.sampled)
        if top:
            entry["top"] = [self._entry(other, value) for other, value in logprobs.top[:top]]
        return entry

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._decode([token_id])
        entry: dict[str, Any] = {"token_id": token_id, "token": text, "logprob": logprob}
        if REPLACEMENT in text and self._token_bytes is not None:
            entry["bytes"] = list(self._token_bytes(token_id))
        return entry


def _channel(before: Channel, after: Channel) -> Channel:
    """Return the channel of a token; a marker belongs to the section that it opens or closes."""
    return before if after == "content" else after
