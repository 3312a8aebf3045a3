"""One answer while it is generated: its tokens become deltas of text, reasoning and tool calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from worker.answer.constraint import AnswerMatcher
from worker.answer.control import without_noncharacters
from worker.answer.parser import AnswerDelta, AnswerParser, CallDelta, Channel
from worker.answer.text import CONTEXT_TOKENS, Decode, Detokenizer, StopScanner


@dataclass(frozen=True, slots=True)
class DeliveredLengths:
    """How many characters of each channel the client has already; `tool_calls` has the characters
    of the arguments of each call."""

    text: int = 0
    reasoning: int = 0
    tool_calls: Sequence[int] = ()


class DeliveredTextFilter:
    """Removes from deltas what the client has already."""

    def __init__(self, sent: DeliveredLengths) -> None:
        self._text = sent.text
        self._reasoning = sent.reasoning
        self._calls = list(sent.tool_calls)
        self._begun = len(self._calls)

    def unsent(self, delta: AnswerDelta) -> AnswerDelta:
        text, self._text = _without_first(delta.text, self._text)
        reasoning, self._reasoning = _without_first(delta.reasoning, self._reasoning)
        calls = [unsent for call in delta.calls if (unsent := self._unsent_call(call))]
        return AnswerDelta(text, reasoning, calls, delta.warnings)

    def _unsent_call(self, call: CallDelta) -> CallDelta | None:
        if call.index >= self._begun:
            return call
        skip = self._calls[call.index]
        arguments, self._calls[call.index] = _without_first(call.arguments, skip)
        return replace(call, arguments=arguments, name=None) if arguments else None


def _without_first(text: str, skip: int) -> tuple[str, int]:
    """Return the text without its first characters, and how many characters are left to skip."""
    skipped = min(skip, len(text))
    return text[skipped:], skip - skipped


_NOTHING_SENT = DeliveredLengths()


class AnswerDecoder:
    """Turns the tokens of one answer into deltas. Used by one thread at a time.

    Args:
        decode: decodes a whole list of token ids.
        prompt_ids: the last of them are context for the decoding of the first tokens.
        parser: splits the text into channels.
        control: the placeholder characters of control tokens, by token id.
        stop_strings: end the answer where they occur in its content.
        sent: text that the client has already, which is left out of the deltas.
        constraint: follows the grammar of the answer.

    Attributes:
        reasoning_tokens: number of tokens of reasoning, its markers included.
    """

    def __init__(
        self,
        decode: Decode,
        prompt_ids: Sequence[int],
        parser: AnswerParser,
        control: Mapping[int, str],
        stop_strings: Sequence[str],
        *,
        sent: DeliveredLengths = _NOTHING_SENT,
        constraint: AnswerMatcher | None = None,
    ) -> None:
        self.constraint = constraint
        self._decode = decode
        self._parser = parser
        self._control = control
        self._scanner = StopScanner(stop_strings)
        self._filter = DeliveredTextFilter(sent)
        self._pending = AnswerDelta()
        self._context = list(prompt_ids[-CONTEXT_TOKENS:])
        self._detokenizer = Detokenizer(decode, self._context)
        self.reasoning_tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; all later text is dropped."""
        return self._scanner.stopped

    @property
    def ended(self) -> bool:
        """Whether only an end token may follow."""
        return self.constraint is not None and self.constraint.ended

    @property
    def problem(self) -> str | None:
        """Why no token may follow; None while one may."""
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
        """The channel of the next token, as far as is known."""
        return self._parser.channel

    def decode_with(self, decode: Decode) -> None:
        """Use the tokenizer of the thread that continues with the answer."""
        self._decode = decode
        self._detokenizer.decode_with(decode)

    def warn(self, warnings: Sequence[str]) -> None:
        """Add warnings to the delta of the next token."""
        self._pending.warnings += warnings

    def resume(self, token_ids: Sequence[int]) -> None:
        """Replay tokens that were generated before, one at a time, as what is held back depends on
        it. Text that was not sent is added to the delta of the next token."""
        for token_id in token_ids:
            self._pending += self._push(token_id)

    def push(self, token_id: int) -> AnswerDelta:
        """Return what this token made certain, without what was sent before."""
        return self._with_pending(self._push(token_id))

    def finish(self, end_id: int | None = None) -> AnswerDelta:
        """Return the rest at the end of the answer; `end_id` is the token that ended it."""
        if self.stopped:
            return self._with_pending(AnswerDelta())
        text = self._plain(self._detokenizer.finish())
        if end_id is not None:
            text += self._control.get(end_id, "")
        delta = self._parser.push(text)
        delta += self._parser.finish()
        delta = self._scanned(delta)
        if not self.stopped:
            delta.text += self._scanner.finish()
        return self._with_pending(self._filter.unsent(delta))

    def _push(self, token_id: int) -> AnswerDelta:
        if self.stopped:
            return AnswerDelta()
        before = self.channel
        if self.constraint is not None:
            self.constraint.advance(token_id)
        delta = self._parser.push(self._text_of(token_id))
        self.reasoning_tokens += "reasoning" in (before, self.channel)
        if self.constraint is not None:
            self.constraint.update(self.channel, self.reasoning_tokens)
        return self._filter.unsent(self._scanned(delta))

    def _with_pending(self, delta: AnswerDelta) -> AnswerDelta:
        pending, self._pending = self._pending, AnswerDelta()
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

    def _scanned(self, delta: AnswerDelta) -> AnswerDelta:
        delta.text = self._scanner.push(delta.text)
        if self.stopped:
            delta.calls = []
        return delta
