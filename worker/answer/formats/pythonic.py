"""LFM2: a list of calls in Python's notation: `<|tool_call_start|>[f(a=1, b="x"), g()]`."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from worker.answer.calls import CallDeltaBuilder
from worker.answer.control import ControlTokenCodec
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import SPACE, add_json, marker
from worker.answer.formats.pythonic_values import read_arguments
from worker.answer.formats.value_rules import ValueGrammar
from worker.answer.reader import Reading, TextReader
from worker.answer.schema_types import resolve
from worker.grammar.lark import LarkGrammarBuilder, literal, one_of

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_NAME = re.compile(r"[^\s\[\](){},='\"\ufdd0-\ufdef]+")
_ESCAPE = r"\\[nrtbf\\'\"]"
_ENFORCED_AS_JSON = frozenset({"pattern", "format"})
_WORDS = {"true": ("True", "true"), "false": ("False", "false"), "null": ("None", "null")}
_WORDS_OF = {"boolean": ("true", "false"), "null": ("null",)}
_ANY_KEYWORD = '/[A-Za-z_][A-Za-z0-9_]{0,63}/ "="'


class Lfm2Format:
    """A section is one list of calls."""

    name: ClassVar[str] = "lfm2"
    markers: ClassVar[tuple[str, ...]] = (_OPEN, _CLOSE)
    openings: ClassVar[tuple[str, ...]] = (_OPEN,)

    def read_head(self, reader: TextReader, names: Collection[str]) -> Reading[None]:
        yield from reader.skip_space()
        yield from reader.expect("[")
        yield from reader.skip_space()
        yield from reader.expect(*(f"{name}(" for name in names))

    def add_section(
        self,
        rules: LarkGrammarBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
        *,
        parallel: bool,
    ) -> str:
        calls = []
        for number, tool in enumerate(tools):
            values = _PythonRules(rules, f"tool_{number}", tool.parameters)
            schema = resolve(tool.parameters, tool.parameters)
            schema = schema if isinstance(schema, dict) else {}
            arguments = values.members(schema, _keyword, _ANY_KEYWORD)
            calls.append(f'{literal(f"{tool.name}(")} {arguments} ")"')
        call = rules.add("call", one_of(calls))
        others = f"({_PythonRules.comma} {call})*" if parallel else ""
        opening, closing = marker(control, _OPEN), marker(control, _CLOSE)
        return rules.add("section", f'{opening} {SPACE} "[" {call} {others} "]" {SPACE} {closing}')

    def read_section(
        self,
        reader: TextReader,
        calls: CallDeltaBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
    ) -> Reading[None]:
        yield from reader.expect(*control.forms(_OPEN))
        yield from reader.skip_space()
        yield from reader.expect("[")
        while True:
            yield from reader.skip_space()
            calls.begin((yield from reader.match(_NAME, "a name")))
            yield from read_arguments(reader, calls.write)
            calls.end()
            yield from reader.skip_space()
            if (yield from reader.expect(",", "]")) == "]":
                break
        yield from reader.skip_space()
        if (yield from reader.peek()):  # some models end an answer without the closing marker
            yield from reader.expect(*control.forms(_CLOSE))


def _keyword(name: str) -> str:
    return literal(f"{name}=")


class _PythonRules(ValueGrammar):
    """Values in Python's notation; also JSON's words, which templates write within objects."""

    comma: ClassVar[str] = "/, ?/"
    any_key: ClassVar[str] = (
        """/("[A-Za-z_][A-Za-z0-9_]{0,63}"|'[A-Za-z_][A-Za-z0-9_]{0,63}'): ?/"""
    )

    def key(self, name: str) -> str:
        return f"{self.text(name)} /: ?/"

    def string(self, schema: Mapping[str, Any]) -> str:
        if _ENFORCED_AS_JSON & schema.keys():
            return add_json(self._rules, self._name(), {**schema, "type": "string"})
        least, most = schema.get("minLength"), schema.get("maxLength")
        count = "*"
        if isinstance(least, int) or isinstance(most, int):
            count = f"{{{least or 0},{most if isinstance(most, int) else ''}}}"
        return one_of([rf"/{quote}([^{quote}\\]|{_ESCAPE}){count}{quote}/" for quote in "\"'"])

    def text(self, value: str) -> str:
        quoted = json.dumps(value, ensure_ascii=False)
        inner = quoted[1:-1].replace('\\"', '"').replace("'", "\\'")
        return one_of([literal(quoted), literal(f"'{inner}'")])

    def plain(self, value: float | bool | None) -> str:
        written = json.dumps(value)
        return one_of([literal(word) for word in _WORDS.get(written, (written,))])

    def plain_of(self, kinds: Sequence[str], schema: Mapping[str, Any]) -> str:
        words = [word for kind in kinds for word in _WORDS_OF.get(kind, ())]
        alternatives = [literal(each) for word in words for each in _WORDS[word]]
        if numbers := [kind for kind in kinds if kind not in _WORDS_OF]:
            alternatives.append(super().plain_of(numbers, schema))
        return one_of(alternatives)
