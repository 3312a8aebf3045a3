"""Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter></function>`.

Values are not quoted: the schema says what they are. A value ends where another parameter or the
end of the function follows, so that it may hold `</parameter>` itself.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

from worker.answer.calls import CallWriter
from worker.answer.control import ControlTokens
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import SPACE, add_json, marker
from worker.answer.reader import BrokenCall, Reading, TextReader
from worker.answer.schema_types import ALL_TYPES, as_json, escaped, json_types, resolve
from worker.grammar.lark import Rules, literal, one_of, pattern
from worker.grammar.schemas import moved

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _PARAMETER = "<function=", "<parameter="
_END_OF_VALUE, _END = "</parameter>", "</function>"
_LINE = "\n"
_VALUE_END = f"{_LINE}{_END_OF_VALUE}{_LINE}"
_NAME = re.compile(r"[^>\n]+")


class QwenXmlFormat:
    """One call a section."""

    name: ClassVar[str] = "qwen3_coder"
    markers: ClassVar[tuple[str, ...]] = (_OPEN, _CLOSE)
    openings: ClassVar[tuple[str, ...]] = (_OPEN, "")

    def read_head(self, reader: TextReader, names: Collection[str]) -> Reading[None]:
        yield from reader.skip_space()
        yield from reader.expect(_FUNCTION)
        yield from reader.expect(*(f"{name}>" for name in names))

    def add_section(
        self, rules: Rules, control: ControlTokens, tools: Sequence[Tool], *, parallel: bool
    ) -> str:
        calls = [_add_call(rules, number, tool) for number, tool in enumerate(tools)]
        call = one_of(calls)
        opening, closing = marker(control, _OPEN), marker(control, _CLOSE)
        return rules.add("section", f"{opening} {SPACE} {call} {SPACE} {closing} | {call}")

    def read_section(
        self, reader: TextReader, calls: CallWriter, control: ControlTokens, tools: Sequence[Tool]
    ) -> Reading[None]:
        opened = yield from reader.expect(*control.forms(_OPEN), "")
        yield from reader.skip_space()
        yield from reader.expect(_FUNCTION)
        name = yield from reader.take(_NAME, "a name")
        yield from reader.expect(">")
        calls.begin(name)
        schema = next((tool.parameters for tool in tools if tool.name == name), {})
        yield from _read_parameters(reader, calls, schema)
        calls.end()
        if opened:
            yield from reader.skip_space()
            if (yield from reader.peek()):  # some models end their answer without it
                yield from reader.expect(*control.forms(_CLOSE))


def _add_call(rules: Rules, number: int, tool: Tool) -> str:
    schema = resolve(tool.parameters, tool.parameters)
    properties = schema.get("properties") if isinstance(schema, dict) else None
    required = schema.get("required") or () if isinstance(schema, dict) else ()
    if isinstance(properties, dict) and "allOf" not in schema:
        parts = []
        for place, (key, inner) in enumerate(properties.items()):
            name = f"value_{number}_{place}"
            value = _add_value(rules, name, inner, tool.parameters)
            rule = rules.add(name, f"{literal(f'{_PARAMETER}{key}>')} {literal(_LINE)} {value}")
            parts.append(rule if key in required else f"{rule}?")
        body = " ".join(parts)
    else:
        value = add_json(rules, f"any_{number}", {})
        key = r"/[A-Za-z_][A-Za-z0-9_]{0,63}/"
        rule = rules.add(
            f"any_{number}",
            f"{literal(_PARAMETER)} {key} {literal('>' + _LINE)} {value} {literal(_VALUE_END)}",
        )
        body = f"{rule}*"
    head = literal(f"{_FUNCTION}{tool.name}>{_LINE}")
    return rules.add(f"call_{number}", f"{head} {body} {literal(_END)}")


def _add_value(rules: Rules, name: str, schema: Any, root: dict[str, Any]) -> str:
    """A value and what ends it. Only what is written without quotes needs a grammar of its own."""
    types = json_types(schema, root)
    found = resolve(schema, root)
    if "string" not in types:
        whole = moved(schema, "#/$defs/root") if isinstance(schema, dict) else schema
        json_ = add_json(rules, name, {"allOf": [whole], "$defs": {"root": root}})
        return f"{json_} {literal(_VALUE_END)}"
    if isinstance(found, dict):
        values = found.get("enum") or ([found["const"]] if "const" in found else [])
        if values:
            texts = [each if isinstance(each, str) else json.dumps(each) for each in values]
            return f"{one_of([literal(text + _VALUE_END) for text in texts])}"
    characters = ".*"
    if isinstance(found, dict):
        least, most = found.get("minLength"), found.get("maxLength")
        if isinstance(least, int) or isinstance(most, int):
            characters = f".{{{least or 0},{most if isinstance(most, int) else ''}}}"
    rules.add(f"{name}_text[lazy]", f"/(?s:{characters}){pattern(_VALUE_END)}/")
    return f"{name}_text"


def _read_parameters(
    reader: TextReader, calls: CallWriter, schema: dict[str, object]
) -> Reading[None]:
    resolved = resolve(schema, schema)
    properties = resolved.get("properties") if isinstance(resolved, dict) else None
    keys: set[str] = set()
    calls.write("{")
    while True:
        yield from reader.skip_space()
        if (yield from reader.expect(_PARAMETER, _END)) == _END:
            break
        key = yield from reader.take(_NAME, "a key")
        yield from reader.expect(">\n", ">")
        if key in keys:
            raise BrokenCall(f"the parameter {key[:64]!r} stands there twice")
        calls.write(f'{", " if keys else ""}"{escaped(key)}": ')
        keys.add(key)
        known = isinstance(properties, dict) and key in properties
        types = json_types(properties[key], schema) if known else ALL_TYPES  # type: ignore[index]
        if types == {"string"}:
            calls.write('"')
            yield from _read_value(reader, lambda text: calls.write(escaped(text)))
            calls.write('"')
        else:
            pieces: list[str] = []
            yield from _read_value(reader, pieces.append)
            calls.write(as_json("".join(pieces), types))
    calls.write("}")


def _read_value(reader: TextReader, emit: Callable[[str], object]) -> Reading[None]:
    """Up to the end mark that another parameter or the end of the function follows."""
    while True:
        end = yield from reader.read_until(emit, f"\n{_END_OF_VALUE}", _END_OF_VALUE)
        if (yield from reader.is_next(_PARAMETER, _END)):
            return
        emit(end)
