"""The prompts of one request: their size, and how much of them is still to be prefilled."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.messages.conversation import Turn, utf8_bytes
from shared.messages.model_status import TYPICAL_BYTES_PER_TOKEN, ModelPerformance
from shared.messages.request import InferenceRequest


@dataclass(slots=True)
class PromptTokenCounts:
    """One prompt, first as received and then as the engine reports it.

    Attributes:
        text_bytes: size of the text in UTF-8; 0 if the prompt was received as token ids.
        id_tokens: number of token ids received; 0 if the prompt was received as text.
        tokens: number of tokens that the engine counted; 0 before that.
        cached_tokens: tokens that were in KV memory.
        left_tokens: tokens still to be prefilled; None before prefill begins.
    """

    text_bytes: int = 0
    id_tokens: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    left_tokens: int | None = None

    def restore(self, tokens: int) -> None:
        """Record that the first `tokens` tokens were in KV memory."""
        self.cached_tokens = min(tokens, self.tokens)
        if self.left_tokens is None:
            self.left_tokens = self.tokens - self.cached_tokens

    def expected_left_tokens(self, speed: ModelPerformance) -> float:
        """Estimate the tokens still to be prefilled; before prefill begins, from the share of
        other prompts that was not cached."""
        if self.left_tokens is not None:
            return self.left_tokens
        return self.expected_tokens(speed) * speed.prefill_share

    def expected_tokens(self, speed: ModelPerformance) -> float:
        """Estimate the length of the prompt."""
        bytes_per_token = speed.bytes_per_token or TYPICAL_BYTES_PER_TOKEN
        return self.tokens or self.id_tokens or self.text_bytes / bytes_per_token


def request_prompts(request: InferenceRequest, messages: Sequence[Turn]) -> list[PromptTokenCounts]:
    """Return the prompts of a request: one of `messages`, or those that it has instead."""
    if not request.prompts:
        return [PromptTokenCounts(request.text_bytes(messages))]
    return [
        PromptTokenCounts(text_bytes=utf8_bytes(prompt))
        if isinstance(prompt, str)
        else PromptTokenCounts(id_tokens=len(prompt))
        for prompt in request.prompts
    ]
