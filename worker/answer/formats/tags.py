"""The tags of formats whose values stand without quotes between them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Tags:
    """How one family writes a call:

        {open} {call}NAME{named} {key}KEY{keyed}{value}VALUE{value_end} ... {end} {close}

    Attributes:
        sections: each `open` and `close`, of which a model writes one pair; both are empty where a
            call stands alone.
        end: empty where the section's `close` ends its only call.
        several: a section may have several calls.
        line: what a value stands between within its tags; a model may leave it out.
        number: between a function's name and the number of its call.
        typed: between a parameter's name and its type.
        types: how the type of a value is written, by its JSON type.
        quotes: what a value may stand between, and must where it holds one of `quoted`.
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
    several: bool = False
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
        """How the type of a string is written; empty where types are not."""
        return self.types.get("string", "")

    @property
    def types_by_name(self) -> dict[str, frozenset[str]]:
        """The JSON types that are written alike."""
        names = dict.fromkeys(self.types.values())
        return {
            name: frozenset(kind for kind, written in self.types.items() if written == name)
            for name in names
        }
