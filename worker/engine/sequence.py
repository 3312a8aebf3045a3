"""One sequence while it is generated: its place, its text, its end."""

from typing import Any

from shared.messages.stream import FinishReason
from worker.engine.decoding import Token, TokenLogprobs
from worker.engine.model import LoadedModel
from worker.engine.prompt import PreparedSequence
from worker.engine.text import Decode, TextStream
from worker.link.messages import Output


class Sequence:
    """Turns the tokens of one sequence into outputs. Belongs to the engine thread."""

    def __init__(self, prepared: PreparedSequence, model: LoadedModel) -> None:
        order = prepared.order
        self.id = order.sequence
        self.model = order.model
        self._decode = model.decode
        self._logprobs = order.sampling.logprobs
        self._index = len(order.resumed_ids)
        self._replayed_ids = order.replayed_ids
        self._ended = order.ended
        self._left = prepared.max_tokens - len(order.answer_ids)
        self._text = TextStream(
            model.decode,
            prepared.prompt_ids,
            order.stop,
            resumed_ids=order.resumed_ids,
            text_sent=order.text_sent,
        )

    def replay(self) -> list[Output]:
        """What an earlier attempt generated, as it was put out then, one output a token; with the
        end where nothing is left to generate."""
        outputs: list[Output] = []
        reason = "length" if self._left <= 0 else self._ended
        last = len(self._replayed_ids) - 1
        for number, token_id in enumerate(self._replayed_ids):
            at_its_end = "length" if number == last and reason == "length" else None
            outputs.append(self.advance(Token(self.id, token_id, at_its_end)))
            if outputs[-1].finish_reason is not None:
                return outputs
        if self._text.stopped or reason is not None:
            rest = self._text.finish()
            outputs.append(self._output([], rest, "stop" if self._text.stopped else reason))
        return outputs

    def advance(self, token: Token) -> Output:
        """The output of one more token; its `finish_reason` is set when it was the last."""
        if token.token_id is None:
            return self._output([], self._text.finish(), "stop")
        logprobs = None
        if self._logprobs is not None and token.logprobs is not None:
            logprobs = [_logprob(token.token_id, token.logprobs, self._logprobs, self._decode)]
        text = self._text.push([token.token_id])
        reason: FinishReason | None = None
        if self._text.stopped:
            reason = "stop"
        elif token.finish_reason == "length":
            reason = "length"
            text += self._text.finish()
            if self._text.stopped:
                reason = "stop"
        return self._output([token.token_id], text, reason, logprobs)

    def cancel(self) -> Output:
        """The last output of a sequence that is cut short."""
        return self._output([], self._text.finish(), "cancelled")

    def _output(
        self,
        token_ids: list[int],
        text: str,
        reason: FinishReason | None,
        logprobs: list[dict[str, Any]] | None = None,
    ) -> Output:
        stop = self._text.stop_sequence if reason == "stop" else None
        output = Output(self.id, self._index, token_ids, text, reason, logprobs, stop)
        self._index += len(token_ids)
        return output


def _logprob(token_id: int, logprobs: TokenLogprobs, top: int, decode: Decode) -> dict[str, Any]:
    """The log-probability of a token and of the `top` likeliest, as the wire shows them."""
    entry = _entry(token_id, logprobs.drawn, decode)
    if top:
        entry["top"] = [_entry(other, value, decode) for other, value in logprobs.top[:top]]
    return entry


def _entry(token_id: int, logprob: float, decode: Decode) -> dict[str, Any]:
    return {"token_id": token_id, "token": decode([token_id]), "logprob": logprob}
