"""How model families mark their reasoning."""

from collections.abc import Container
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning is the text between `open` and `close`.

    Attributes:
        name: the value of a model's `reasoning_format`.
        content: pairs of markers, one of which may enclose the content after the reasoning.
        end: marker that may end an answer.
        tokens: added tokens that identify the format, if its markers are more than one token.
    """

    name: str
    open: str
    close: str
    content: tuple[tuple[str, str], ...] = ()
    end: str = ""
    tokens: tuple[str, ...] = ()

    @property
    def content_markers(self) -> tuple[str, ...]:
        pairs = (marker for pair in self.content for marker in pair)
        return (*pairs, self.end) if self.end else tuple(pairs)

    @property
    def markers(self) -> tuple[str, ...]:
        return self.open, self.close, *self.content_markers

    def is_shown(self, template: str, added_tokens: Container[str]) -> bool:
        """Whether a template or a vocabulary has the format's markers."""
        if not self._knows(self.open, self.close, template, added_tokens):
            return False
        return not self.content or bool(self.narrowed(template, added_tokens).content)

    def narrowed(self, template: str, added_tokens: Container[str]) -> "ReasoningFormat":
        """Return the format without the content markers that neither template nor vocabulary
        has."""
        known = [pair for pair in self.content if self._knows(*pair, template, added_tokens)]
        return replace(self, content=tuple(known))

    def _knows(self, begin: str, end: str, template: str, added_tokens: Container[str]) -> bool:
        tokens = self.tokens or (end,)
        return all(token in added_tokens for token in tokens) or (
            begin in template and end in template
        )


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
        (("<|open|>response<|sep|>", "<|close|>response<|sep|>"),),
        end="<|close|>message<|sep|>",
        tokens=("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
    ),
    ReasoningFormat("granite", "<think>", "</think>", (("<response>", "</response>"),)),
    ReasoningFormat(
        "cohere",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        (("<|START_RESPONSE|>", "<|END_RESPONSE|>"), ("<|START_TEXT|>", "<|END_TEXT|>")),
    ),
)


def find_reasoning_format(template: str, added_tokens: Container[str]) -> ReasoningFormat | None:
    """Return the first format whose markers the template or the vocabulary has; one whose content
    markers are found, too, comes first."""
    shown = [each for each in REASONING_FORMATS if each.is_shown(template, added_tokens)]
    return max(shown, key=lambda each: bool(each.content), default=None)
