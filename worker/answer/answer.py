"""One answer while its tokens come: text, reasoning and tool calls, as far as they are certain."""

from collections.abc import Mapping, Sequence

from worker.answer.constraint import Constraint
from worker.answer.control import without_noncharacters
from worker.answer.delta import Delta
from worker.answer.parser import AnswerParser, Channel
from worker.answer.sent import DeliveredFilter, DeliveredText
from worker.answer.text import CONTEXT_TOKENS, Decode, Detokenizer, StopScanner

_NOTHING_SENT = DeliveredText()


class Answer:
    """Takes the tokens of an answer one at a time. Belongs to one thread at a time.

    Args:
        decode: all-at-once decoding of token ids.
        prompt_ids: the last of them are context.
        parser: splits the text.
        control: the characters of control tokens, by id.
        stop_strings: end the answer where they stand in its content.
        sent: what is left out, as the client has it.
        constraint: what the tokens are bound to.

    Attributes:
        reasoning_tokens: those that belong to reasoning, its markers included.
    """

    def __init__(
        self,
        decode: Decode,
        prompt_ids: Sequence[int],
        parser: AnswerParser,
        control: Mapping[int, str],
        stop_strings: Sequence[str],
        *,
        sent: DeliveredText = _NOTHING_SENT,
        constraint: Constraint | None = None,
    ) -> None:
        self.constraint = constraint
        self._decode = decode
        self._parser = parser
        self._control = control
        self._scanner = StopScanner(stop_strings)
        self._filter = DeliveredFilter(sent)
        self._pending = Delta()
        self._context = list(prompt_ids[-CONTEXT_TOKENS:])
        self._detokenizer = Detokenizer(decode, self._context)
        self.reasoning_tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; nothing comes after it."""
        return self._scanner.stopped

    @property
    def ended(self) -> bool:
        """Whether nothing but an end may follow."""
        return self.constraint is not None and self.constraint.ended

    @property
    def problem(self) -> str | None:
        """Why it cannot go on; None while it can."""
        return self.constraint.problem if self.constraint is not None else None

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that was found."""
        return self._scanner.found

    @property
    def has_calls(self) -> bool:
        return self._parser.has_calls

    @property
    def channel(self) -> Channel:
        """Where the next token will belong, as far as is known."""
        return self._parser.channel

    def decode_with(self, decode: Decode) -> None:
        """Another thread goes on with it, which has a tokenizer of its own."""
        self._decode = decode
        self._detokenizer.decode_with(decode)

    def warn(self, sentences: Sequence[str]) -> None:
        """Tell these with the next token."""
        self._pending.warnings += sentences

    def resume(self, token_ids: Sequence[int]) -> None:
        """Go on after these, one at a time, as they were generated: what is held back depends on
        it. What they add beyond what was sent comes with the next token."""
        for token_id in token_ids:
            self._pending += self._push(token_id)

    def push(self, token_id: int) -> Delta:
        """What became certain with this token, and was not sent."""
        return self._with_pending(self._push(token_id))

    def finish(self, end_id: int | None = None) -> Delta:
        """The rest, at the end of the answer; `end_id` is the token that ended it."""
        if self.stopped:
            return self._with_pending(Delta())
        text = self._plain(self._detokenizer.finish())
        if end_id is not None:
            text += self._control.get(end_id, "")
        delta = self._parser.push(text)
        delta += self._parser.finish()
        delta = self._scanned(delta)
        if not self.stopped:
            delta.text += self._scanner.finish()
        return self._with_pending(self._filter.unsent(delta))

    def _push(self, token_id: int) -> Delta:
        if self.stopped:
            return Delta()
        before = self.channel
        if self.constraint is not None:
            self.constraint.take(token_id)
        delta = self._parser.push(self._text_of(token_id))
        self.reasoning_tokens += "reasoning" in (before, self.channel)
        if self.constraint is not None:
            self.constraint.parsed(self.channel, self.reasoning_tokens)
        return self._filter.unsent(self._scanned(delta))

    def _with_pending(self, delta: Delta) -> Delta:
        pending, self._pending = self._pending, Delta()
        pending += delta
        return pending

    def _text_of(self, token_id: int) -> str:
        if not self._control:
            return self._detokenizer.push([token_id])
        self._context = [*self._context, token_id][-CONTEXT_TOKENS:]
        if (character := self._control.get(token_id)) is None:
            return self._plain(self._detokenizer.push([token_id]))
        rest = self._plain(self._detokenizer.finish())
        self._detokenizer = Detokenizer(self._decode, self._context)
        return rest + character

    def _plain(self, text: str) -> str:
        return without_noncharacters(text) if self._control else text

    def _scanned(self, delta: Delta) -> Delta:
        delta.text = self._scanner.push(delta.text)
        if self.stopped:
            delta.calls = []
        return delta
