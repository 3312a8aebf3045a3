"""How families of models mark what they think before they answer."""

from collections.abc import Container
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning stands between `open` and `close`; `name` as in `reasoning_format` of a model.

    Attributes:
        content: pairs of markers; between one of them may stand what is said after it.
    """

    name: str
    open: str
    close: str
    content: tuple[tuple[str, str], ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        return self.open, self.close, *(marker for pair in self.content for marker in pair)

    def is_shown(self, template: str, added_tokens: Container[str]) -> bool:
        """Whether a template or a vocabulary knows its markers."""
        reasons = self.close in added_tokens or (self.open in template and self.close in template)
        return reasons and (not self.content or bool(self.narrowed(template, added_tokens).content))

    def narrowed(self, template: str, added_tokens: Container[str]) -> "ReasoningFormat":
        """Without the markers of content that neither template nor vocabulary knows."""
        known = (
            (begin, end)
            for begin, end in self.content
            if end in added_tokens or (begin in template and end in template)
        )
        return replace(self, content=tuple(known))


REASONING_FORMATS = (
    ReasoningFormat("think", "<think>", "</think>"),
    ReasoningFormat("longcat", "<longcat_think>", "</longcat_think>"),
    ReasoningFormat("think_start_end", "<|think:start|>", "<|think:end|>"),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    ReasoningFormat("gemma4", "<|channel>thought\n", "<channel|>"),
    ReasoningFormat("granite", "<think>", "</think>", (("<response>", "</response>"),)),
    ReasoningFormat(
        "cohere",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        (("<|START_RESPONSE|>", "<|END_RESPONSE|>"), ("<|START_TEXT|>", "<|END_TEXT|>")),
    ),
)


def find_reasoning_format(template: str, added_tokens: Container[str]) -> ReasoningFormat | None:
    """The first whose closing marker the template or the vocabulary knows; before it one whose
    markers of content are known, too."""
    shown = [each for each in REASONING_FORMATS if each.is_shown(template, added_tokens)]
    return max(shown, key=lambda each: bool(each.content), default=None)
