"""The prompts of one request: how large they are, and how much of them is still to be computed."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.messages.conversation import Turn, utf8_bytes
from shared.messages.model_status import TYPICAL_BYTES_PER_TOKEN, ModelSpeed
from shared.messages.request import InferenceRequest


@dataclass(slots=True)
class RequestPrompt:
    """One prompt, first as it came and then as the engine tells of it.

    Attributes:
        text_bytes: in UTF-8; 0 where it came as token ids.
        id_tokens: 0 where it came as text.
        tokens: as the engine counted them; 0 while it has not.
        cached_tokens: those that were kept.
        left_tokens: those that are still to be computed; None before the engine has begun.
    """

    text_bytes: int = 0
    id_tokens: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    left_tokens: int | None = None

    def restored(self, tokens: int) -> None:
        """So many first tokens were kept."""
        self.cached_tokens = min(tokens, self.tokens)
        if self.left_tokens is None:
            self.left_tokens = self.tokens - self.cached_tokens

    def expected_left_tokens(self, speed: ModelSpeed) -> float:
        """As far as can be said: before it begins, what was kept of others tells how much will
        be kept of it."""
        if self.left_tokens is not None:
            return self.left_tokens
        return self.expected_tokens(speed) * speed.prefill_share

    def expected_tokens(self, speed: ModelSpeed) -> float:
        """How long it is, as far as can be said."""
        bytes_per_token = speed.bytes_per_token or TYPICAL_BYTES_PER_TOKEN
        return self.tokens or self.id_tokens or self.text_bytes / bytes_per_token


def request_prompts(request: InferenceRequest, messages: Sequence[Turn]) -> list[RequestPrompt]:
    """Those of a request, of which the model reads these messages, if any."""
    if not request.prompts:
        return [RequestPrompt(request.text_bytes(messages))]
    return [
        RequestPrompt(text_bytes=utf8_bytes(prompt))
        if isinstance(prompt, str)
        else RequestPrompt(id_tokens=len(prompt))
        for prompt in request.prompts
    ]
