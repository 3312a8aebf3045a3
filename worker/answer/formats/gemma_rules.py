"""Grammars of values as Gemma writes them: keys without quotes, strings between its own marks."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from worker.answer.schema_types import json_types, resolve
from worker.grammar.lark import Rules, literal, one_of
from worker.grammar.schemas import with_options

_PLAIN = ("null", "boolean", "integer", "number")
_NUMBERS = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
)  # fmt: skip
_MAX_DEPTH = 32


class GemmaRules:
    """Adds rules for the values of one schema.

    Args:
        prefix: of the names of its rules.
        quote: the mark around strings, as a grammar has it.
        text: a rule body for what stands between the marks.
    """

    def __init__(
        self, rules: Rules, prefix: str, root: Mapping[str, Any], quote: str, text: str
    ) -> None:
        self._rules = rules
        self._prefix = prefix
        self._root = root
        self._quote = quote
        self._text = text
        self._count = 0
        self._references: dict[str, str] = {}

    def value(self, schema: Any, depth: int = 0) -> str:
        """What stands for a value of a schema."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return self._any()
        if isinstance(reference := schema.get("$ref"), str):
            if reference not in self._references:
                name = self._references[reference] = self._name()
                self._rules.add(name, self.value(resolve(schema, self._root), depth + 1))
            return self._references[reference]
        if (values := _fixed(schema)) is not None:
            return one_of([self._written(each) for each in values])
        for key in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(key), list) and options:
                return one_of([self.value(option, depth + 1) for option in options])
        types = json_types(schema, self._root)
        alternatives = []
        if plain := [kind for kind in _PLAIN if kind in types]:
            bounds = {key: schema[key] for key in _NUMBERS if key in schema}
            name = self._name()
            plain_schema = with_options({"type": plain, **bounds}, lenient=True)
            alternatives.append(self._rules.refer(name, {"json_schema": plain_schema}))
        if "string" in types:
            alternatives.append(self._string(schema))
        if "array" in types:
            alternatives.append(self._list(schema, depth))
        if "object" in types:
            alternatives.append(self.object(schema, depth))
        return one_of(alternatives) if alternatives else self._any()

    def object(self, schema: Mapping[str, Any], depth: int = 0) -> str:
        """`{key:value,...}` of the properties that are named; of any where none are."""
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            if schema.get("additionalProperties") is False:
                return literal("{}")
            return self._open_object()
        required = schema.get("required") or ()
        first, rest = "", ""  # of what follows: where nothing was written, and where something was
        for key, inner in reversed(properties.items()):
            pair = self._rules.add(
                self._name(), f"{literal(f'{key}:')} {self.value(inner, depth + 1)}"
            )
            if key in required:
                first, rest = f"{pair} {rest}", f'"," {pair} {rest}'
            else:
                first = f"({pair} {rest} | {first})" if first else f"({pair} {rest})?"
                rest = f'("," {pair})? {rest}'
            rest = self._rules.add(self._name(), rest) if rest.strip() else ""
        body = self._rules.add(self._name(), first) if first.strip() else ""
        return f"{literal('{')} {body} {literal('}')}"

    def _list(self, schema: Mapping[str, Any], depth: int) -> str:
        items = schema.get("items")
        item = self._rules.add(
            self._name(), self.value(items if isinstance(items, dict) else {}, depth + 1)
        )
        least, most = schema.get("minItems"), schema.get("maxItems")
        least = least if isinstance(least, int) else 0
        if most == 0:
            return literal("[]")
        others = f'("," {item}){{{max(0, least - 1)},{most - 1 if isinstance(most, int) else ""}}}'
        full = f"{item} {others}"
        return f'"[" {full} "]"' if least > 0 else f'"[" ({full})? "]"'

    def _string(self, schema: Mapping[str, Any]) -> str:
        least, most = schema.get("minLength"), schema.get("maxLength")
        text = self._text
        if isinstance(least, int) or isinstance(most, int):
            text = f"/(?s:.{{{least or 0},{most if isinstance(most, int) else ''}}})/"
        return f"{self._quote} {text} {self._quote}"

    def _written(self, value: Any) -> str:
        match value:
            case str():
                return f"{self._quote} {literal(value)} {self._quote}"
            case Mapping():
                pairs = f" {literal(',')} ".join(
                    f"{literal(f'{key}:')} {self._written(each)}" for key, each in value.items()
                )
                return f"{literal('{')} {pairs} {literal('}')}"
            case Sequence():
                parts = f" {literal(',')} ".join(self._written(each) for each in value)
                return f'"[" {parts} "]"'
            case _:
                return literal(json.dumps(value))

    def _open_object(self) -> str:
        any_value = self._any()
        pair = f"/[A-Za-z_][A-Za-z0-9_]{{0,63}}/ {literal(':')} {any_value}"
        return f'{literal("{")} ({pair} ("," {pair})*)? {literal("}")}'

    def _any(self) -> str:
        """A rule for a value of any kind."""
        name = f"{self._prefix}_any"
        if name not in self._references:
            self._references[name] = name
            plain = self._rules.refer(
                f"{name}_plain", {"json_schema": with_options({"type": list(_PLAIN)})}
            )
            text = f"{self._quote} {self._text} {self._quote}"
            items = f'"[" ({name} ("," {name})*)? "]"'
            self._rules.add(name, one_of([plain, text, items, self._open_object()]))
        return name

    def _name(self) -> str:
        self._count += 1
        return f"{self._prefix}_{self._count}"


def _fixed(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and values else None
