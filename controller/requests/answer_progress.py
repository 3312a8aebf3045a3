"""The part of an answer that workers have reported: the next attempt continues after it."""

from dataclasses import dataclass, field

from shared.messages.dispatch import Continuation
from shared.messages.request_events import TokensEmitted
from shared.messages.stream import FinishReason


@dataclass(slots=True)
class AnswerProgress:
    """
    Attributes:
        resumed_tokens: number of tokens of the only choice that the client already had (`resume`).
        tokens: token ids emitted after those, by choice.
        text_sent: characters of text by choice, those of the resumed tokens included.
        finish_reasons: of choices that ended before others.
        first_token_ms: from the arrival of the request to its first token.
        cached_tokens: tokens of its prompts that were cached on the worker of the first attempt.
    """

    resumed_tokens: int = 0
    tokens: dict[int, list[int]] = field(default_factory=dict)
    text_sent: dict[int, int] = field(default_factory=dict)
    finish_reasons: dict[int, FinishReason] = field(default_factory=dict)
    first_token_ms: float | None = None
    cached_tokens: int | None = None

    @classmethod
    def from_continuation(cls, known: Continuation | None, resumed_tokens: int) -> "AnswerProgress":
        """Return the progress that a worker or another leader reported."""
        if known is None:
            return cls(resumed_tokens)
        return cls(
            resumed_tokens,
            {choice: ids[resumed_tokens:] for choice, ids in known.token_ids.items()},
            dict(known.text_sent),
            dict(known.finish_reasons),
            known.first_token_ms,
            known.cached_tokens,
        )

    @property
    def started(self) -> bool:
        """Whether any part of the answer is known."""
        return bool(self.tokens)

    @property
    def count(self) -> int:
        """Number of tokens of all choices."""
        return sum(map(len, self.tokens.values()))

    def record(self, event: TokensEmitted, elapsed_ms: float) -> bool:
        """Append the new tokens of an event, and skip those that are known. Return False if there
        is a gap before them: then nothing is appended."""
        if self.first_token_ms is None:
            self.first_token_ms = elapsed_ms
            self.cached_tokens = event.cached_tokens
        known = self.tokens.setdefault(event.choice, [])
        index = event.index - self.resumed_tokens
        if not 0 <= index <= len(known):
            return False
        known.extend(event.token_ids[len(known) - index :])
        if event.token_ids:
            self.text_sent[event.choice] = event.text_sent
        if event.finish_reason is not None:
            self.finish_reasons[event.choice] = event.finish_reason
        return True

    def continuation(self, resumed_ids: list[int]) -> Continuation | None:
        """Return what the next attempt continues after; None before the first token."""
        if not self.started:
            return None
        return Continuation(
            token_ids={choice: [*resumed_ids, *ids] for choice, ids in self.tokens.items()},
            text_sent=self.text_sent,
            finish_reasons=self.finish_reasons,
            first_token_ms=self.first_token_ms,
            cached_tokens=self.cached_tokens,
        )
