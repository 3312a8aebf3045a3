"""How far the answer to a request has come, as its workers told: where another one goes on."""

from dataclasses import dataclass, field

from shared.messages.dispatch import Continuation
from shared.messages.request_events import TokensEmitted
from shared.messages.stream import FinishReason


@dataclass(slots=True)
class AnswerProgress:
    """
    Attributes:
        heard: how many tokens of its only answer the client had before (`resume`).
        tokens: what was emitted after those, by choice.
        text_sent: how many characters of text that made, those before too.
        finish_reasons: of choices that ended before others.
        first_token_ms: from the arrival of the request to the first of them.
        cached_tokens: of its prompts, those that were cached where it began.
    """

    heard: int = 0
    tokens: dict[int, list[int]] = field(default_factory=dict)
    text_sent: dict[int, int] = field(default_factory=dict)
    finish_reasons: dict[int, FinishReason] = field(default_factory=dict)
    first_token_ms: float | None = None
    cached_tokens: int | None = None

    @classmethod
    def of(cls, known: Continuation | None, heard: int) -> "AnswerProgress":
        """As a worker told of it."""
        if known is None:
            return cls(heard)
        return cls(
            heard,
            {choice: ids[heard:] for choice, ids in known.token_ids.items()},
            dict(known.text_sent),
            dict(known.finish_reasons),
            known.first_token_ms,
            known.cached_tokens,
        )

    @property
    def started(self) -> bool:
        """Whether anything of the answer is known."""
        return bool(self.tokens)

    @property
    def count(self) -> int:
        """Tokens of all choices."""
        return sum(map(len, self.tokens.values()))

    def note(self, event: TokensEmitted, elapsed_ms: float) -> bool:
        """Keep new tokens; what is known already is not taken twice. Returns whether they fit:
        after a gap nothing does any more."""
        if self.first_token_ms is None:
            self.first_token_ms = elapsed_ms
            self.cached_tokens = event.cached_tokens
        known = self.tokens.setdefault(event.choice, [])
        index = event.index - self.heard
        if not 0 <= index <= len(known):
            return False
        known.extend(event.token_ids[len(known) - index :])
        if event.token_ids:
            self.text_sent[event.choice] = event.text_sent
        if event.finish_reason is not None:
            self.finish_reasons[event.choice] = event.finish_reason
        return True

    def continuation(self, heard_ids: list[int]) -> Continuation | None:
        """What the next attempt goes on from; None before the first token."""
        if not self.started:
            return None
        return Continuation(
            token_ids={choice: [*heard_ids, *ids] for choice, ids in self.tokens.items()},
            text_sent=self.text_sent,
            finish_reasons=self.finish_reasons,
            first_token_ms=self.first_token_ms,
            cached_tokens=self.cached_tokens,
        )
