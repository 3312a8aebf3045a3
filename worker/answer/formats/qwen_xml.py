"""Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter></function>`.

Values are not quoted: the schema says what they are. A value ends where another parameter or the
end of the function follows, so that it may hold `</parameter>` itself.
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar

from worker.answer.calls import CallWriter
from worker.answer.control import ControlTokens
from worker.answer.formats.base import Tool
from worker.answer.reader import BrokenCall, Reading, TextReader
from worker.answer.schema_types import ALL_TYPES, as_json, escaped, json_types, resolve

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _PARAMETER = "<function=", "<parameter="
_END_OF_VALUE, _END = "</parameter>", "</function>"
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
