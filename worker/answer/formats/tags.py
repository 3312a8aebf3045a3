"""The tags of formats whose calls are tags with unquoted values."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CallTags:
    """How a model family writes a call:

        {open} {call}NAME{named} {key}KEY{keyed}{value}VALUE{value_end} ... {end} {close}

    Attributes:
        sections: pairs of `open` and `close`, of which a model writes one; both are empty if a
            call may have no outer tags.
        end: empty if the section's `close` ends its only call.
        multiple: a section may have several calls.
        line: optional text between a value and its tags, on both sides.
        number: text between a function's name and the number of its call.
        typed: text between a parameter's name and its type.
        types: the written form of each JSON type.
        quotes: optional quotes around a value, required if it contains a character of `quoted`.
    """

    sections: tuple[tuple[str, str], ...]
    call: str
    named: str
    end: str
    key: str
    keyed: str
    value_end: str
    value: str = ""
    line: str = ""
    multiple: bool = False
    number: str = ""
    typed: str = ""
    types: Mapping[str, str] = field(default_factory=dict)
    quotes: tuple[str, str] | None = None
    quoted: str = ""

    @property
    def openings(self) -> tuple[str, ...]:
        return tuple(opening for opening, _ in self.sections)

    @property
    def markers(self) -> tuple[str, ...]:
        pairs = [marker for pair in self.sections for marker in pair]
        around = (self.call, self.named, self.end, self.key, self.keyed, self.value, self.value_end)
        return tuple(marker for marker in (*pairs, *around, *(self.quotes or ())) if marker)

    @property
    def string_type(self) -> str:
        """The written form of the type of strings; empty if the format writes no types."""
        return self.types.get("string", "")

    @property
    def types_by_name(self) -> dict[str, frozenset[str]]:
        """The JSON types of each written form."""
        names = dict.fromkeys(self.types.values())
        return {
            name: frozenset(kind for kind, written in self.types.items() if written == name)
            for name in names
        }
