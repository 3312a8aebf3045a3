"""How families of models mark what they think before they answer."""

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning stands between `open` and `close`; `name` as in `reasoning_format` of a model.

    Attributes:
        frame: what stands before and behind content and ends an answer, in families that mark
            content, too.
    """

    name: str
    open: str
    close: str
    frame: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        return self.open, self.close, *self.frame


REASONING_FORMATS = (
    ReasoningFormat("think", "<think>", "</think>"),
    ReasoningFormat("longcat", "<longcat_think>", "</longcat_think>"),
    ReasoningFormat("think_start_end", "<|think:start|>", "<|think:end|>"),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    ReasoningFormat("gemma4", "<|channel>thought\n", "<channel|>"),
    ReasoningFormat("seed", "<seed:think>", "</seed:think>"),
    ReasoningFormat(
        "kimi_k3",
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
)
_TOKENS = {"kimi_k3": ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")}
"""The added tokens that show a format whose markers are more than one token."""


def find_reasoning_format(template: str, added_tokens: Container[str]) -> ReasoningFormat | None:
    """The first whose closing marker the template or the vocabulary knows."""
    for each in REASONING_FORMATS:
        tokens = _TOKENS.get(each.name, (each.close,))
        if all(token in added_tokens for token in tokens) or (
            each.open in template and each.close in template
        ):
            return each
    return None
