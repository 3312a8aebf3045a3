"""Gemma: `call:name{key:value}` with unquoted keys, and strings between `<escape>` marks
(FunctionGemma) or `<|"|>` marks (Gemma 4)."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from worker.answer.calls import CallDeltaBuilder
from worker.answer.control import ControlTokenCodec
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import marker
from worker.answer.formats.value_rules import ValueGrammar
from worker.answer.reader import BrokenCall, Reading, TextReader
from worker.answer.schema_types import escaped, resolve
from worker.grammar.lark import LarkGrammarBuilder, literal, one_of

_NAME = re.compile(r"[^\s{}\ufdd0-\ufdef]+")
_KEY = re.compile(r"[^:{}\[\],\ufdd0-\ufdef]+")
_SCALAR = re.compile(r"[-+.0-9A-Za-z]+")
_MAX_DEPTH = 64


class _GemmaRules(ValueGrammar):
    """Unquoted keys, strings between marks.

    Args:
        quote: rule body for the mark around strings.
        text: rule body for the text between the marks.
    """

    any_key: ClassVar[str] = '/[A-Za-z_][A-Za-z0-9_]{0,63}/ ":"'

    def __init__(
        self, rules: LarkGrammarBuilder, prefix: str, root: Mapping[str, Any], quote: str, text: str
    ) -> None:
        super().__init__(rules, prefix, root)
        self._quote = quote
        self._text = text

    def key(self, name: str) -> str:
        return literal(f"{name}:")

    def string(self, schema: Mapping[str, Any]) -> str:
        least, most = schema.get("minLength"), schema.get("maxLength")
        text = self._text
        if isinstance(least, int) or isinstance(most, int):
            text = f"/(?s:.{{{least or 0},{most if isinstance(most, int) else ''}}})/"
        return f"{self._quote} {text} {self._quote}"

    def text(self, value: str) -> str:
        return f"{self._quote} {literal(value)} {self._quote}"

    def plain(self, value: float | bool | None) -> str:
        return literal(json.dumps(value))


class GemmaFormat:
    """A section is one call, in Gemma 4's notation."""

    name: ClassVar[str] = "gemma4"
    quote: ClassVar[str] = '<|"|>'
    open: ClassVar[str] = "<|tool_call>"
    close: ClassVar[str] = "<tool_call|>"
    markers: ClassVar[tuple[str, ...]] = (open, close, quote)
    openings: ClassVar[tuple[str, ...]] = (open,)

    def read_head(self, reader: TextReader, names: Collection[str]) -> Reading[None]:
        yield from reader.skip_space()
        yield from reader.expect("call:")
        yield from reader.expect(*(f"{name}{{" for name in names))

    def add_section(
        self,
        rules: LarkGrammarBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
        *,
        parallel: bool,
    ) -> str:
        quote = marker(control, self.quote)
        is_token = control.encode(self.quote) != self.quote
        text = "/(?s:.*)/" if is_token else "/[^<]*/"
        calls = []
        for number, tool in enumerate(tools):
            root = tool.parameters
            values = _GemmaRules(rules, f"tool_{number}", root, quote, text)
            schema = resolve(root, root)
            arguments = values.object(schema if isinstance(schema, dict) else {})
            calls.append(f"{literal(tool.name)} {arguments}")
        opening, closing = marker(control, self.open), marker(control, self.close)
        return rules.add("section", f'{opening} "call:" {one_of(calls)} {closing}')

    def read_section(
        self,
        reader: TextReader,
        calls: CallDeltaBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
    ) -> Reading[None]:
        yield from reader.expect(*control.forms(self.open))
        yield from reader.skip_space()
        yield from reader.expect("call:")
        calls.begin((yield from reader.match(_NAME, "a name")))
        yield from reader.skip_space()
        yield from _read_object(reader, calls, control.forms(self.quote), _MAX_DEPTH)
        calls.end()
        yield from reader.skip_space()
        if (yield from reader.peek()):
            yield from reader.expect(*control.forms(self.close))


class FunctionGemmaFormat(GemmaFormat):
    """A section is one call, in FunctionGemma's notation."""

    name: ClassVar[str] = "function_gemma"
    quote: ClassVar[str] = "<escape>"
    open: ClassVar[str] = "<start_function_call>"
    close: ClassVar[str] = "<end_function_call>"
    markers: ClassVar[tuple[str, ...]] = (open, close, quote)
    openings: ClassVar[tuple[str, ...]] = (open,)


def _read_object(
    reader: TextReader, calls: CallDeltaBuilder, quote: Sequence[str], depth: int
) -> Reading[None]:
    yield from reader.expect("{")
    calls.write("{")
    keys: set[str] = set()
    yield from reader.skip_space()
    while (yield from reader.peek()) != "}":
        key = (yield from reader.match(_KEY, "a key")).strip().strip('"')
        yield from reader.expect(":")
        if key in keys:
            raise BrokenCall(f"the key {key[:64]!r} occurs twice")
        calls.write(f'{", " if keys else ""}"{escaped(key)}": ')
        keys.add(key)
        yield from _read_value(reader, calls, quote, depth - 1)
        yield from _read_comma(reader, "}")
    yield from reader.expect("}")
    calls.write("}")


def _read_list(
    reader: TextReader, calls: CallDeltaBuilder, quote: Sequence[str], depth: int
) -> Reading[None]:
    yield from reader.expect("[")
    calls.write("[")
    yield from reader.skip_space()
    first = True
    while (yield from reader.peek()) != "]":
        calls.write("" if first else ", ")
        first = False
        yield from _read_value(reader, calls, quote, depth - 1)
        yield from _read_comma(reader, "]")
    yield from reader.expect("]")
    calls.write("]")


def _read_comma(reader: TextReader, close: str) -> Reading[None]:
    yield from reader.skip_space()
    if (yield from reader.peek()) != close:
        yield from reader.expect(",")
        yield from reader.skip_space()


def _read_value(
    reader: TextReader, calls: CallDeltaBuilder, quote: Sequence[str], depth: int
) -> Reading[None]:
    if depth == 0:
        raise BrokenCall(f"it is nested deeper than {_MAX_DEPTH}")
    yield from reader.skip_space()
    match (yield from reader.peek()):
        case "{":
            yield from _read_object(reader, calls, quote, depth)
        case "[":
            yield from _read_list(reader, calls, quote, depth)
        case '"':
            yield from reader.json_value(calls.write)
        case character if character and (character.isalnum() or character in "-+."):
            calls.write((yield from reader.match(_SCALAR, "a value")))
        case _:
            yield from reader.expect(*quote)
            calls.write('"')
            yield from reader.read_until(lambda text: calls.write(escaped(text)), *quote)
            calls.write('"')
