"""The tags of formats whose calls are tags with unquoted values, and a grammar for the values."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from worker.answer.control import ControlTokenCodec
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import SPACE, add_json, marker
from worker.answer.schema_types import ALL_TYPES, json_types, resolve, type_of
from worker.grammar.lark import LarkGrammarBuilder, literal, one_of, pattern
from worker.grammar.schemas import rebased


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


_ANY_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"


class TaggedValueGrammar:
    """Adds rules for sections of one format.

    Args:
        encode_name: returns a name as written in a tag.
    """

    def __init__(
        self,
        rules: LarkGrammarBuilder,
        control: ControlTokenCodec,
        tags: CallTags,
        encode_name: Callable[[str], str],
    ) -> None:
        self._rules = rules
        self._control = control
        self._tags = tags
        self._encode_name = encode_name

    def section(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        calls = [self.call(number, tool) for number, tool in enumerate(tools)]
        call = self._rules.add("call", one_of(calls))
        if self._tags.multiple and parallel:
            call = f"{call} ({SPACE} {call})*"
        sections = [
            f"{self._marker(opening)} {SPACE} {call} {SPACE} {self._marker(close)}"
            if opening
            else call
            for opening, close in self._tags.sections
        ]
        return self._rules.add("section", one_of(sections))

    def call(self, number: int, tool: Tool) -> str:
        """Add a rule for a call from its opening tag to its closing tag, if there is one."""
        tags, root = self._tags, tool.parameters
        schema = resolve(root, root)
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if isinstance(properties, dict) and "allOf" not in schema:
            required = schema.get("required") or ()
            parameters = [
                f"({SPACE} {self._parameter(f'value_{number}_{place}', key, inner, root)})"
                + ("" if key in required else "?")
                for place, (key, inner) in enumerate(properties.items())
            ]
            body = " ".join(parameters)
        else:
            body = f"({SPACE} {self._parameter(f'any_{number}', None, {}, root)})*"
        name = self._encode_name(tool.name)
        if tags.number:
            head = f"{self._marker(f'{tags.call}{name}{tags.number}')} /[0-9]{{1,4}}/ "
            head += self._marker(tags.named)
        else:
            head = self._marker(f"{tags.call}{name}{tags.named}")
        end = f"{SPACE} {self._marker(tags.end)}" if tags.end else ""
        return self._rules.add(f"call_{number}", f"{head} {body} {end}")

    def _parameter(self, name: str, key: str | None, schema: Any, root: dict[str, Any]) -> str:
        """Add a rule for a parameter with its tags; `key` None stands for any key."""
        tags, types = self._tags, json_types(schema, root) or ALL_TYPES
        if not tags.typed:
            untyped = self._untyped(_Value(name, schema, root), types)
            return self._rules.add(name, f"{self._head(key, '')} {untyped}")
        alternatives = []
        for place, (written, kinds) in enumerate(tags.types_by_name.items()):
            if kinds & types:
                value = _Value(f"{name}_{place}", schema, root)
                typed = self._typed(value, kinds & types, types)
                alternatives.append(f"{self._head(key, f'{tags.typed}{written}')} {typed}")
        return self._rules.add(name, one_of(alternatives))

    def _head(self, key: str | None, typed: str) -> str:
        """Return a rule body for all that precedes a value."""
        tags = self._tags
        if key is None:
            head = f"{self._marker(tags.key)} {_ANY_KEY} {self._marker(f'{typed}{tags.keyed}')}"
        else:
            head = self._marker(f"{tags.key}{self._encode_name(key)}{typed}{tags.keyed}")
        value = f"{SPACE} {self._marker(tags.value)}" if tags.value else ""
        return f"{head} {value} {literal(tags.line)}"

    # Rule bodies for values, with their closing tags.

    def _untyped(self, value: "_Value", types: frozenset[str]) -> str:
        """A value with or without quotes, if the format has quotes."""
        if (quotes := self._tags.quotes) is None:
            return self._bare(value, types, self._end)
        begin, end = quotes
        within = _Value(f"{value.name}_quoted", value.schema, value.root)
        quoted = f"{self._marker(begin)} {self._bare(within, types, f'{end}{self._end}')}"
        value = _Value(value.name, value.schema, value.root, f"[^{pattern(self._tags.quoted)}]")
        return one_of([quoted, *filter(None, [self._bare(value, types, self._end)])])

    def _bare(self, value: "_Value", types: frozenset[str], end: str) -> str:
        """A value without quotes: text, one of the fixed values, or JSON."""
        if "string" not in types:
            return self._json(value, types, types, end)
        if (fixed := value.fixed) is not None:
            return self._one_of([each for each in fixed if value.may_be(each)], end)
        return self._text(value, end)

    def _typed(self, value: "_Value", kinds: frozenset[str], types: frozenset[str]) -> str:
        """A value of some of the types of its schema."""
        if (fixed := value.fixed) is not None:
            fixed = [each for each in fixed if type_of(each) in kinds] or fixed
            return self._one_of(fixed, self._end)
        if kinds == {"string"}:
            return self._text(value, self._end)
        return self._json(value, kinds, types, self._end)

    def _one_of(self, values: Sequence[Any], end: str) -> str:
        bare = [each if isinstance(each, str) else json.dumps(each) for each in values]
        return one_of([self._marker(f"{each}{end}") for each in bare]) if bare else ""

    def _json(
        self, value: "_Value", kinds: Collection[str], types: Collection[str], end: str
    ) -> str:
        schema = value.schema
        whole = rebased(schema, "#/$defs/root") if isinstance(schema, dict) else schema
        parts = [whole] if kinds == types else [whole, {"type": sorted(kinds)}]
        json_ = add_json(self._rules, value.name, {"allOf": parts, "$defs": {"root": value.root}})
        return f"{json_} {self._marker(end)}"

    def _text(self, value: "_Value", end: str) -> str:
        """Text up to the first `end`. If `end` has a special token, which text never contains, up
        to that token."""
        name = f"{value.name}_text"
        if not self._control.is_special(end):
            self._rules.add(f"{name}[lazy]", f"/(?s:{value.characters}){pattern(end)}/")
            return name
        first = self._control.token_ids(end)[0]
        before = first if isinstance(first, str) else ""
        self._rules.add(name, f"/(?s:{value.characters}){pattern(before)}/")
        return f"{name} {self._marker(end.removeprefix(before))}"

    @property
    def _end(self) -> str:
        return f"{self._tags.line}{self._tags.value_end}"

    def _marker(self, text: str) -> str:
        return marker(self._control, text)


class _Value:
    """One value: the name of its rules, its schema, and the `character` class of its text."""

    def __init__(self, name: str, schema: Any, root: dict[str, Any], character: str = ".") -> None:
        self.name = name
        self.schema = schema
        self.root = root
        self._character = character
        self._found = resolve(schema, root)

    @property
    def fixed(self) -> list[Any] | None:
        """The values of `enum` or `const`; None without them."""
        if not isinstance(self._found, dict):
            return None
        values = self._found.get("enum") or (
            [self._found["const"]] if "const" in self._found else None
        )
        return values if isinstance(values, list) else None

    @property
    def characters(self) -> str:
        """A regular expression for a text of the length that the schema allows."""
        if isinstance(self._found, dict):
            least, most = self._found.get("minLength"), self._found.get("maxLength")
            if isinstance(least, int) or isinstance(most, int):
                count = f"{{{least or 0},{most if isinstance(most, int) else ''}}}"
                return f"{self._character}{count}"
        return f"{self._character}*"

    def may_be(self, value: Any) -> bool:
        """Whether a value consists of characters of the value's class."""
        text = value if isinstance(value, str) else json.dumps(value)
        return re.fullmatch(f"(?s:{self._character}*)", text) is not None
