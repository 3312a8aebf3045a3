"""Control tokens in a text: each has a placeholder character, which no model writes as text.

The placeholders are Unicode's noncharacters U+FDD0 to U+FDEF, reserved for a program's internal
use (Unicode 16, section 23.7). So a parser of an answer is a parser of text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_FIRST, _LAST = 0xFDD0, 0xFDEF
_NONCHARACTERS = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token added to a vocabulary for one whole string; decoding hides a `special` one."""

    id: int
    special: bool


class ControlTokenCodec:
    """The added tokens of a format's markers, and their placeholder characters.

    Args:
        vocabulary: the model's added tokens by their string.
        markers: strings of the format. The parts of a marker that are not added tokens are
            ordinary text.
        hidden: markers whose tokens are never visible.

    Attributes:
        by_id: the placeholder character of each token id.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, AddedToken],
        markers: Sequence[str],
        hidden: Sequence[str] = (),
    ) -> None:
        found = [text for text in vocabulary if any(text in marker for marker in markers)]
        found.sort(key=lambda text: (-len(text), text))
        found = found[: _LAST - _FIRST + 1]
        self._special = {text: vocabulary[text].special for text in found}
        self._characters = {text: chr(_FIRST + number) for number, text in enumerate(found)}
        self._visible = {
            self._characters[text]: "" if vocabulary[text].special or text in hidden else text
            for text in found
        }
        self._spellings = {character: text for text, character in self._characters.items()}
        self._token_ids = {text: vocabulary[text].id for text in found}
        self.by_id = {self._token_ids[text]: self._characters[text] for text in found}
        self._split = re.compile("|".join(map(re.escape, found)) or r"(?!)")

    def forms(self, marker: str) -> tuple[str, ...]:
        """Return the texts that a marker may have: with placeholders for its added tokens, and
        spelled out. A marker with a special token has only the first form."""
        encoded = self.encode(marker)
        if encoded == marker:
            return (marker,)
        return (encoded,) if self.is_special(marker) else (encoded, marker)

    def encode(self, marker: str) -> str:
        """Return a marker with placeholders for its added tokens."""
        return self._split.sub(lambda match: self._characters[match.group()], marker)

    def is_special(self, marker: str) -> bool:
        """Whether a marker has a special token, and so is recognised by token id only."""
        return any(self._special[text] for text in self._split.findall(marker))

    def token_ids(self, marker: str) -> list[int | str]:
        """Split a marker into ids of added tokens and pieces of ordinary text."""
        parts: list[int | str] = []
        at = 0
        for match in self._split.finditer(marker):
            parts += [marker[at : match.start()], self._token_ids[match.group()]]
            at = match.end()
        return [part for part in [*parts, marker[at:]] if part != ""]

    def parts(self, text: str) -> list[int | str]:
        """Split a text with placeholders into token ids and pieces of ordinary text."""
        parts: list[int | str] = []
        at = 0
        for match in _NONCHARACTERS.finditer(text):
            parts += [text[at : match.start()], self._token_ids[self._spellings[match.group()]]]
            at = match.end()
        return [part for part in [*parts, text[at:]] if part != ""]

    def spell_out(self, text: str) -> str:
        """Return a text with the strings of its control tokens in place of placeholders."""
        return _NONCHARACTERS.sub(lambda match: self._spellings.get(match.group(), ""), text)

    def visible(self, text: str) -> str:
        """Return a text as decoding shows it: special tokens are hidden, others spelled out."""
        return _NONCHARACTERS.sub(lambda match: self._visible.get(match.group(), ""), text)


NO_CONTROL_TOKENS = ControlTokenCodec({}, [])


def without_noncharacters(text: str) -> str:
    """Replace characters of a model's text that would be read as placeholders."""
    return _NONCHARACTERS.sub("�", text)
