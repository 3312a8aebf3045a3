"""Formats whose calls are a list of JSON objects after a marker."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from worker.answer.calls import CallDeltaBuilder, read_json_calls, read_json_head
from worker.answer.control import ControlTokenCodec
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import (
    SPACE,
    add_json,
    call_list_schema,
    call_schema,
    marker,
)
from worker.answer.reader import Reading, TextReader
from worker.grammar.lark import LarkGrammarBuilder, one_of


class JsonListFormat:
    """A section is an opening, the list, and an optional closing marker.

    Attributes:
        closing: the marker that ends a section; empty if there is none.
        name_key, arguments_key: the keys of each object.
        before: properties that may precede these keys.
    """

    name: ClassVar[str]
    markers: ClassVar[tuple[str, ...]]
    openings: ClassVar[tuple[str, ...]]
    closing: ClassVar[str] = ""
    name_key: ClassVar[str] = "name"
    arguments_key: ClassVar[str] = "arguments"
    before: ClassVar[Mapping[str, Any]] = {}

    def read_head(self, reader: TextReader, names: Collection[str]) -> Reading[None]:
        yield from reader.skip_space()
        yield from reader.expect("[")
        yield from read_json_head(reader, names, name_key=self.name_key, before=self.before)

    def add_section(
        self,
        rules: LarkGrammarBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
        *,
        parallel: bool,
    ) -> str:
        call = call_schema(tools, self.arguments_key, name_key=self.name_key, before=self.before)
        calls = add_json(rules, "calls", call_list_schema(call, parallel=parallel))
        opening = one_of([marker(control, each) for each in self.openings])
        closing = f"{SPACE} {marker(control, self.closing)}" if self.closes(control) else ""
        return rules.add("section", f"{opening} {SPACE} {calls} {closing}")

    def read_section(
        self,
        reader: TextReader,
        calls: CallDeltaBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
    ) -> Reading[None]:
        openings = [form for each in self.openings for form in control.forms(each)]
        yield from reader.expect(*openings)
        yield from reader.skip_space()
        yield from read_json_calls(
            reader, calls, arguments_key=self.arguments_key, name_key=self.name_key
        )
        if not self.closes(control):
            return
        yield from reader.skip_space()
        is_token = control.encode(self.closing) != self.closing
        if not is_token or (yield from reader.peek()):  # the token itself may end the answer
            yield from reader.expect(*control.forms(self.closing))

    def closes(self, control: ControlTokenCodec) -> bool:
        """Whether a model with these control tokens writes the closing marker."""
        return bool(self.closing)


_OPEN, _CLOSE = "<TOOLCALL>", "</TOOLCALL>"


class NemotronFormat(JsonListFormat):
    """A section is a list of JSON objects."""

    name: ClassVar[str] = "nemotron"
    markers: ClassVar[tuple[str, ...]] = (_OPEN, _CLOSE)
    openings: ClassVar[tuple[str, ...]] = (_OPEN,)
    closing: ClassVar[str] = _CLOSE


_GRANITE_OPEN, _GRANITE_CLOSE = "<|tool_call|>", "<|/tool_call|>"


class GraniteFormat(JsonListFormat):
    """A section is a list of JSON objects."""

    name: ClassVar[str] = "granite"
    markers: ClassVar[tuple[str, ...]] = (_GRANITE_OPEN, _GRANITE_CLOSE)
    openings: ClassVar[tuple[str, ...]] = (_GRANITE_OPEN, "<tool_call>")
    closing: ClassVar[str] = _GRANITE_CLOSE

    def closes(self, control: ControlTokenCodec) -> bool:
        return control.encode(_GRANITE_CLOSE) != _GRANITE_CLOSE  # only Phi-4-mini has this token


_COHERE_OPEN, _COHERE_CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"


class CohereFormat(JsonListFormat):
    """A section is a list of JSON objects; the ids count the calls of the conversation."""

    name: ClassVar[str] = "cohere"
    markers: ClassVar[tuple[str, ...]] = (_COHERE_OPEN, _COHERE_CLOSE)
    openings: ClassVar[tuple[str, ...]] = (_COHERE_OPEN,)
    closing: ClassVar[str] = _COHERE_CLOSE
    name_key: ClassVar[str] = "tool_name"
    arguments_key: ClassVar[str] = "parameters"
    before: ClassVar[Mapping[str, Any]] = {
        "tool_call_id": {"type": "string", "pattern": "^[0-9]{1,4}$"}
    }
