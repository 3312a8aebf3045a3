"""Mistral: `[TOOL_CALLS]` and a JSON list, or, since Tekken v11, `[TOOL_CALLS]name[ARGS]{...}`."""

import re
from collections.abc import Collection, Sequence
from typing import ClassVar

from worker.answer.calls import CallDeltaBuilder, read_json_calls
from worker.answer.control import ControlTokenCodec
from worker.answer.formats.base import Tool
from worker.answer.formats.json_list import JsonListFormat
from worker.answer.formats.json_rules import SPACE, add_json, marker
from worker.answer.reader import Reading, TextReader
from worker.grammar.lark import LarkGrammarBuilder, literal, one_of

_OPEN, _ARGUMENTS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME = re.compile(r"[^\s\[{\ufdd0-\ufdef]+")


class MistralFormat(JsonListFormat):
    """A section is a list of JSON objects."""

    name: ClassVar[str] = "mistral"
    markers: ClassVar[tuple[str, ...]] = (_OPEN, _ARGUMENTS, _ID)
    openings: ClassVar[tuple[str, ...]] = (_OPEN,)

    def read_section(
        self,
        reader: TextReader,
        calls: CallDeltaBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
    ) -> Reading[None]:
        yield from reader.expect(*control.forms(_OPEN))
        yield from reader.skip_space()
        if (yield from reader.peek()) == "[":
            yield from read_json_calls(reader, calls, arguments_key="arguments")
        else:
            yield from _read_named(reader, calls, control)


class MistralArgsFormat(MistralFormat):
    """A section is one call: a name, `[ARGS]`, a JSON object."""

    name: ClassVar[str] = "mistral_args"

    def read_head(self, reader: TextReader, names: Collection[str]) -> Reading[None]:
        yield from reader.skip_space()
        yield from reader.expect(*(f"{name}{end}" for name in names for end in (_ARGUMENTS, _ID)))

    def add_section(
        self,
        rules: LarkGrammarBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
        *,
        parallel: bool,
    ) -> str:
        arguments = marker(control, _ARGUMENTS)
        calls = [
            f"{literal(tool.name)} {arguments} {SPACE} "
            + add_json(rules, f"arguments_{number}", tool.parameters)
            for number, tool in enumerate(tools)
        ]
        return rules.add("section", f"{marker(control, _OPEN)} {SPACE} {one_of(calls)}")


def _read_named(
    reader: TextReader, calls: CallDeltaBuilder, control: ControlTokenCodec
) -> Reading[None]:
    calls.begin((yield from reader.match(_NAME, "a name")))
    yield from reader.skip_space()
    call_id, arguments = control.forms(_ID), control.forms(_ARGUMENTS)
    if (yield from reader.expect(*call_id, *arguments)) in call_id:
        yield from reader.read_until(len, *arguments)
    yield from reader.skip_space()
    yield from reader.json_value(calls.write)
    calls.end()
