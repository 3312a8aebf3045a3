"""Gemma: `call:name{key:value}` with strings between `<escape>` marks (FunctionGemma) or `<|"|>`
(Gemma 4), and keys without quotes."""

import re
from collections.abc import Collection, Sequence
from typing import ClassVar

from worker.answer.calls import CallWriter
from worker.answer.control import ControlTokens
from worker.answer.formats.base import Tool
from worker.answer.formats.gemma_rules import GemmaRules
from worker.answer.formats.json_rules import marker
from worker.answer.reader import BrokenCall, Reading, TextReader
from worker.answer.schema_types import escaped, resolve
from worker.grammar.lark import Rules, literal, one_of

_NAME = re.compile(r"[^\s{}\ufdd0-\ufdef]+")
_KEY = re.compile(r"[^:{}\[\],\ufdd0-\ufdef]+")
_SCALAR = re.compile(r"[-+.0-9A-Za-z]+")
_MAX_DEPTH = 64


class GemmaFormat:
    """One call a section, as Gemma 4 writes it."""

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
        self, rules: Rules, control: ControlTokens, tools: Sequence[Tool], *, parallel: bool
    ) -> str:
        quote = marker(control, self.quote)
        is_token = control.by_token(self.quote) != self.quote
        text = "/(?s:.*)/" if is_token else "/[^<]*/"
        calls = []
        for number, tool in enumerate(tools):
            root = tool.parameters
            values = GemmaRules(rules, f"tool_{number}", root, quote, text)
            schema = resolve(root, root)
            arguments = values.object(schema if isinstance(schema, dict) else {})
            calls.append(f"{literal(tool.name)} {arguments}")
        opening, closing = marker(control, self.open), marker(control, self.close)
        return rules.add("section", f'{opening} "call:" {one_of(calls)} {closing}')

    def read_section(
        self, reader: TextReader, calls: CallWriter, control: ControlTokens, tools: Sequence[Tool]
    ) -> Reading[None]:
        yield from reader.expect(*control.forms(self.open))
        yield from reader.skip_space()
        yield from reader.expect("call:")
        calls.begin((yield from reader.take(_NAME, "a name")))
        yield from reader.skip_space()
        yield from _read_object(reader, calls, control.forms(self.quote), _MAX_DEPTH)
        calls.end()
        yield from reader.skip_space()
        if (yield from reader.peek()):
            yield from reader.expect(*control.forms(self.close))


class FunctionGemmaFormat(GemmaFormat):
    """One call a section, as FunctionGemma writes it."""

    name: ClassVar[str] = "function_gemma"
    quote: ClassVar[str] = "<escape>"
    open: ClassVar[str] = "<start_function_call>"
    close: ClassVar[str] = "<end_function_call>"
    markers: ClassVar[tuple[str, ...]] = (open, close, quote)
    openings: ClassVar[tuple[str, ...]] = (open,)


def _read_object(
    reader: TextReader, calls: CallWriter, quote: Sequence[str], depth: int
) -> Reading[None]:
    yield from reader.expect("{")
    calls.write("{")
    keys: set[str] = set()
    yield from reader.skip_space()
    while (yield from reader.peek()) != "}":
        key = (yield from reader.take(_KEY, "a key")).strip().strip('"')
        yield from reader.expect(":")
        if key in keys:
            raise BrokenCall(f"the key {key[:64]!r} stands there twice")
        calls.write(f'{", " if keys else ""}"{escaped(key)}": ')
        keys.add(key)
        yield from _read_value(reader, calls, quote, depth - 1)
        yield from _read_comma(reader, "}")
    yield from reader.expect("}")
    calls.write("}")


def _read_list(
    reader: TextReader, calls: CallWriter, quote: Sequence[str], depth: int
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
    reader: TextReader, calls: CallWriter, quote: Sequence[str], depth: int
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
            calls.write((yield from reader.take(_SCALAR, "a value")))
        case _:
            yield from reader.expect(*quote)
            calls.write('"')
            yield from reader.read_until(lambda text: calls.write(escaped(text)), *quote)
            calls.write('"')
