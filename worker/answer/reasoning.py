"""How families of models mark what they think before they answer."""

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning stands between `open` and `close`; `name` as in `reasoning_format` of a model."""

    name: str
    open: str
    close: str

    @property
    def markers(self) -> tuple[str, str]:
        return self.open, self.close


REASONING_FORMATS = (
    ReasoningFormat("think", "<think>", "</think>"),
    ReasoningFormat("longcat", "<longcat_think>", "</longcat_think>"),
    ReasoningFormat("think_start_end", "<|think:start|>", "<|think:end|>"),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    ReasoningFormat("gemma4", "<|channel>thought\n", "<channel|>"),
)


def find_reasoning_format(template: str, added_tokens: Container[str]) -> ReasoningFormat | None:
    """The first whose closing marker the template or the vocabulary knows."""
    for each in REASONING_FORMATS:
        if each.close in added_tokens or (each.open in template and each.close in template):
            return each
    return None
