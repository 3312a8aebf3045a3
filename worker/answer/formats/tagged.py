"""Formats whose calls are tags with unquoted values; the schema or the tag gives a value's type. A
value ends where another parameter or the end of the call follows, so a value may contain its
closing tag."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from worker.answer.calls import CallDeltaBuilder
from worker.answer.control import ControlTokenCodec
from worker.answer.formats.base import Tool
from worker.answer.formats.tags import CallTags, TaggedValueGrammar
from worker.answer.reader import BrokenCall, Reading, TextReader
from worker.answer.schema_types import (
    ALL_TYPES,
    as_json,
    escaped,
    json_types,
    resolve,
    typed_as_json,
)
from worker.grammar.lark import LarkGrammarBuilder

_NAME = re.compile(r'[^\s<>"\ufdd0-\ufdef]+')
_NUMBER = re.compile(r"[0-9]+")
_TYPE = re.compile(r"[a-z]+")


class TaggedValuesFormat:
    """Base class of these formats, which differ in their `tags`."""

    tags: ClassVar[CallTags]

    def read_head(self, reader: TextReader, names: Collection[str]) -> Reading[None]:
        tags = self.tags
        yield from reader.skip_space()
        yield from reader.expect(tags.call)
        behind = [tags.number or tags.named]
        if not behind[0]:
            behind = ["\n", " ", tags.key, *(close for _, close in tags.sections)]
        yield from reader.expect(*(f"{name}{each}" for name in names for each in behind))

    def add_section(
        self,
        rules: LarkGrammarBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
        *,
        parallel: bool,
    ) -> str:
        return TaggedValueGrammar(rules, control, self.tags, self.encode_name).section(
            tools, parallel=parallel
        )

    def read_section(
        self,
        reader: TextReader,
        calls: CallDeltaBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
    ) -> Reading[None]:
        tags = self.tags
        closings = {
            form: control.forms(close)
            for opening, close in tags.sections
            for form in control.forms(opening)
        }
        opening = yield from reader.expect(*closings)
        close, call = closings[opening], control.forms(tags.call)
        yield from reader.skip_space()
        yield from reader.expect(*call)
        while True:
            end = control.forms(tags.end) if tags.end else close
            yield from self._read_call(reader, calls, control, tools, end)
            if not (opening and tags.end):
                return
            yield from reader.skip_space()
            if not (yield from reader.peek()):  # some models end an answer without the marker
                return
            if (yield from reader.expect(*close, *call)) in close:
                return

    def encode_name(self, name: str) -> str:
        """Return the name of a function or parameter as written in its tag."""
        return name

    def decode_name(self, encoded: str) -> str:
        """Return the inverse of `encode_name`."""
        return encoded

    def read_arguments(
        self,
        reader: TextReader,
        calls: CallDeltaBuilder,
        control: ControlTokenCodec,
        end: Sequence[str],
    ) -> Reading[bool]:
        """Read arguments in an alternative notation, and the `end` of the call; returns whether the
        call has this notation."""
        yield from ()
        return False

    def _read_call(
        self,
        reader: TextReader,
        calls: CallDeltaBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
        end: Sequence[str],
    ) -> Reading[None]:
        """Read a call after `tags.call`, its `end` included."""
        tags = self.tags
        name = self.decode_name((yield from reader.match(_NAME, "a name")))
        if tags.number and (yield from reader.expect(tags.number, "")):
            yield from reader.match(_NUMBER, "a number")
        yield from reader.expect(*control.forms(tags.named))
        calls.begin(name)
        if not (yield from self.read_arguments(reader, calls, control, end)):
            schema = next((tool.parameters for tool in tools if tool.name == name), {})
            yield from self._read_parameters(reader, calls, control, schema, end)
        calls.end()

    def _read_parameters(
        self,
        reader: TextReader,
        calls: CallDeltaBuilder,
        control: ControlTokenCodec,
        schema: dict[str, Any],
        end: Sequence[str],
    ) -> Reading[None]:
        tags = self.tags
        resolved = resolve(schema, schema)
        found = resolved.get("properties") if isinstance(resolved, dict) else None
        properties: Mapping[str, Any] = found if isinstance(found, dict) else {}
        tag = control.forms(tags.key)
        characters = _other_than((tags.typed or tags.keyed)[0])
        keys: set[str] = set()
        calls.write("{")
        while True:
            yield from reader.skip_space()
            if (yield from reader.expect(*tag, *end)) in end:
                break
            key = self.decode_name((yield from reader.match(characters, "a key")))
            if key in keys:
                raise BrokenCall(f"the parameter {key[:64]!r} occurs twice")
            calls.write(f'{", " if keys else ""}"{escaped(key)}": ')
            keys.add(key)
            types = json_types(properties[key], schema) if key in properties else ALL_TYPES
            yield from self._read_value(reader, calls, control, types, (*tag, *end))
        calls.write("}")

    def _read_value(
        self,
        reader: TextReader,
        calls: CallDeltaBuilder,
        control: ControlTokenCodec,
        types: frozenset[str],
        follows: Sequence[str],
    ) -> Reading[None]:
        """Read the value of a parameter, after its name."""
        tags = self.tags
        written_type = ""
        if tags.typed:
            yield from reader.expect(tags.typed)
            written_type = yield from reader.match(_TYPE, "a type")
        yield from reader.expect(*control.forms(tags.keyed))
        if tags.value:
            yield from reader.skip_space()
            yield from reader.expect(*control.forms(tags.value))
        yield from reader.expect(tags.line, "")
        ends = control.forms(tags.value_end)
        ends = tuple(dict.fromkeys([*(f"{tags.line}{end}" for end in ends), *ends]))
        if tags.quotes is not None:
            begin, close = map(control.forms, tags.quotes)
            if (yield from reader.expect(*begin, "")):
                ends = tuple(f"{each}{end}" for each in close for end in ends)
        is_string = written_type == tags.string_type
        if is_string and ("string" in types if tags.typed else types == {"string"}):
            calls.write('"')
            yield from _read_text(reader, lambda text: calls.write(escaped(text)), ends, follows)
            calls.write('"')
            return
        pieces: list[str] = []
        yield from _read_text(reader, pieces.append, ends, follows)
        convert = as_json if is_string else typed_as_json
        calls.write(convert("".join(pieces), types))


def _read_text(
    reader: TextReader, emit: Callable[[str], object], ends: Sequence[str], follows: Sequence[str]
) -> Reading[None]:
    """Emit text up to the first of `ends` that one of `follows` follows."""
    while True:
        end = yield from reader.read_until(emit, *ends)
        if (yield from reader.is_next(*follows)):
            return
        emit(end)


@cache
def _other_than(character: str) -> "re.Pattern[str]":
    return re.compile(rf"[^{re.escape(character)}\n\ufdd0-\ufdef]+")
