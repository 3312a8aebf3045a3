"""Control tokens in a text: each is one character, which no model writes as text.

The characters are Unicode's noncharacters U+FDD0 to U+FDEF, which are for a program's internal
use only (Unicode 16, section 23.7). So a parser of an answer is a parser of text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_FIRST, _LAST = 0xFDD0, 0xFDEF
_NONCHARACTERS = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that stands for one whole string; decoding hides a `special` one."""

    id: int
    special: bool


class ControlTokens:
    """The added tokens that a format's markers are written with, as characters.

    Args:
        vocabulary: the model's added tokens by their string.
        markers: strings of the format. What of a marker is no added token is ordinary text.
        hidden: those of them whose tokens are not to be seen, wherever they stand.
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
        self._shown = {
            self._characters[text]: "" if vocabulary[text].special or text in hidden else text
            for text in found
        }
        self._texts = {character: text for text, character in self._characters.items()}
        self._token_ids = {text: vocabulary[text].id for text in found}
        self.by_id = {self._token_ids[text]: self._characters[text] for text in found}
        self._split = re.compile("|".join(map(re.escape, found)) or r"(?!)")

    def forms(self, marker: str) -> tuple[str, ...]:
        """What a marker may look like: as it comes where its added tokens come as such, and
        spelled. A special token is known by its id only."""
        by_token = self.by_token(marker)
        if by_token == marker:
            return (marker,)
        return (by_token,) if self.is_special(marker) else (by_token, marker)

    def by_token(self, marker: str) -> str:
        """The marker as it comes where its added tokens come as such."""
        return self._split.sub(lambda match: self._characters[match.group()], marker)

    def is_special(self, marker: str) -> bool:
        """Whether a marker has a special token, by which alone it is known."""
        return any(self._special[text] for text in self._split.findall(marker))

    def token_ids(self, marker: str) -> list[int | str]:
        """A marker as ids of added tokens and pieces of ordinary text."""
        parts: list[int | str] = []
        at = 0
        for match in self._split.finditer(marker):
            parts += [marker[at : match.start()], self._token_ids[match.group()]]
            at = match.end()
        return [part for part in [*parts, marker[at:]] if part != ""]

    def parts(self, text: str) -> list[int | str]:
        """A text with control characters as ids and pieces of ordinary text."""
        parts: list[int | str] = []
        at = 0
        for match in _NONCHARACTERS.finditer(text):
            parts += [text[at : match.start()], self._token_ids[self._texts[match.group()]]]
            at = match.end()
        return [part for part in [*parts, text[at:]] if part != ""]

    def spelled(self, text: str) -> str:
        """A text with its control tokens written out."""
        return _NONCHARACTERS.sub(lambda match: self._texts.get(match.group(), ""), text)

    def shown(self, text: str) -> str:
        """A text as decoding shows it: special tokens are hidden, others written out."""
        return _NONCHARACTERS.sub(lambda match: self._shown.get(match.group(), ""), text)


NO_CONTROL_TOKENS = ControlTokens({}, [])


def without_noncharacters(text: str) -> str:
    """A model's text in which no character stands for a control token."""
    return _NONCHARACTERS.sub("�", text)
