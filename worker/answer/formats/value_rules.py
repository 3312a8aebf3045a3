"""Grammars of values in a model family's own notation, which is not JSON."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from worker.answer.schema_types import json_types, resolve
from worker.grammar.lark import LarkGrammarBuilder, literal, one_of
from worker.grammar.schemas import with_options

_PLAIN = ("null", "boolean", "integer", "number")
_NUMBERS = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
)  # fmt: skip
_MAX_DEPTH = 32


class ValueGrammar(ABC):
    """Adds rules for the values of one schema. The abstract methods return rule bodies.

    Args:
        prefix: prefix of the names of the rules.

    Attributes:
        comma: rule body for the separator of members.
        any_key: rule body for a key that the schema does not name, and the separator after it.
    """

    comma: ClassVar[str] = '","'
    any_key: ClassVar[str]

    def __init__(self, rules: LarkGrammarBuilder, prefix: str, root: Mapping[str, Any]) -> None:
        self._rules = rules
        self._prefix = prefix
        self._root = root
        self._count = 0
        self._references: dict[str, str] = {}

    @abstractmethod
    def key(self, name: str) -> str:
        """The key of an object's member, and the separator after it."""

    @abstractmethod
    def string(self, schema: Mapping[str, Any]) -> str:
        """Any string that a schema allows."""

    @abstractmethod
    def text(self, value: str) -> str:
        """One string."""

    @abstractmethod
    def plain(self, value: float | bool | None) -> str:
        """One number, boolean or null."""

    def plain_of(self, kinds: Sequence[str], schema: Mapping[str, Any]) -> str:
        """Return a rule body for the numbers, booleans and null of these types."""
        bounds = {key: schema[key] for key in _NUMBERS if key in schema}
        plain_schema = with_options({"type": list(kinds), **bounds}, lenient=True)
        return self._rules.add_grammar(self._name(), {"json_schema": plain_schema})

    def value(self, schema: Any, depth: int = 0) -> str:
        """Return a rule body for a value of a schema."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return self._any()
        if isinstance(reference := schema.get("$ref"), str):
            if reference not in self._references:
                name = self._references[reference] = self._name()
                self._rules.add(name, self.value(resolve(schema, self._root), depth + 1))
            return self._references[reference]
        if (values := _fixed(schema)) is not None:
            return one_of([self._fixed_value(each) for each in values])
        for key in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(key), list) and options:
                return one_of([self.value(option, depth + 1) for option in options])
        types = json_types(schema, self._root)
        alternatives = []
        if plain := [kind for kind in _PLAIN if kind in types]:
            alternatives.append(self.plain_of(plain, schema))
        if "string" in types:
            alternatives.append(self.string(schema))
        if "array" in types:
            alternatives.append(self._list(schema, depth))
        if "object" in types:
            alternatives.append(self.object(schema, depth))
        return one_of(alternatives) if alternatives else self._any()

    def object(self, schema: Mapping[str, Any], depth: int = 0) -> str:
        """Return a rule body for an object, braces included."""
        return (
            f"{literal('{')} {self.members(schema, self.key, self.any_key, depth)} {literal('}')}"
        )

    def members(
        self, schema: Mapping[str, Any], key_of: Callable[[str], str], any_key: str, depth: int = 0
    ) -> str:
        """Return a rule body for the properties of a schema in their order; for any members if the
        schema names no properties."""
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return "" if schema.get("additionalProperties") is False else self._any_members(any_key)
        required = schema.get("required") or ()
        first, rest = "", ""  # rules of the later members: without and with a member before them
        for key, inner in reversed(properties.items()):
            pair = self._rules.add(self._name(), f"{key_of(key)} {self.value(inner, depth + 1)}")
            if key in required:
                first, rest = f"{pair} {rest}", f"{self.comma} {pair} {rest}"
            else:
                first = f"({pair} {rest} | {first})" if first else f"({pair} {rest})?"
                rest = f"({self.comma} {pair})? {rest}"
            rest = self._rules.add(self._name(), rest) if rest.strip() else ""
        return self._rules.add(self._name(), first) if first.strip() else ""

    def _list(self, schema: Mapping[str, Any], depth: int) -> str:
        items = schema.get("items")
        item = self._rules.add(
            self._name(), self.value(items if isinstance(items, dict) else {}, depth + 1)
        )
        least, most = schema.get("minItems"), schema.get("maxItems")
        least = least if isinstance(least, int) else 0
        if most == 0:
            return literal("[]")
        most_others = most - 1 if isinstance(most, int) else ""
        others = f"({self.comma} {item}){{{max(0, least - 1)},{most_others}}}"
        full = f"{item} {others}"
        return f'"[" {full} "]"' if least > 0 else f'"[" ({full})? "]"'

    def _fixed_value(self, value: Any) -> str:
        match value:
            case str():
                return self.text(value)
            case Mapping():
                pairs = f" {self.comma} ".join(
                    f"{self.key(key)} {self._fixed_value(each)}" for key, each in value.items()
                )
                return f"{literal('{')} {pairs} {literal('}')}"
            case Sequence():
                parts = f" {self.comma} ".join(self._fixed_value(each) for each in value)
                return f'"[" {parts} "]"'
            case _:
                return self.plain(value)

    def _any_members(self, any_key: str) -> str:
        pair = f"{any_key} {self._any()}"
        return f"({pair} ({self.comma} {pair})*)?"

    def _any(self) -> str:
        """Return the name of a rule for a value of any type."""
        name = f"{self._prefix}_any"
        if name not in self._references:
            self._references[name] = name
            items = f'"[" ({name} ({self.comma} {name})*)? "]"'
            members = f"{literal('{')} {self._any_members(self.any_key)} {literal('}')}"
            self._rules.add(
                name, one_of([self.plain_of(_PLAIN, {}), self.string({}), items, members])
            )
        return name

    def _name(self) -> str:
        self._count += 1
        return f"{self._prefix}_{self._count}"


def _fixed(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and values else None
