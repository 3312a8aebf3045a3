"""The tokens that a step generates."""

from dataclasses import dataclass

from shared.messages.stream import FinishReason


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
