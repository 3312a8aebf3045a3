"""Families whose calls are a list of JSON objects behind a marker."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from worker.answer.calls import CallWriter, read_json_call, read_json_head
from worker.answer.control import ControlTokens
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import SPACE, add_json, call_schema, marker
from worker.answer.reader import Reading, TextReader
from worker.grammar.lark import Rules, one_of


class JsonListFormat:
    """A section is an opening, the list, and what closes it, if anything does.

    Attributes:
        closing: what ends a section where it is a token of the vocabulary; in answers that no
            grammar binds it may be missing.
        name_key, arguments_key: the keys of each object.
        before: properties that may stand before them.
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
        self, rules: Rules, control: ControlTokens, tools: Sequence[Tool], *, parallel: bool
    ) -> str:
        call = call_schema(tools, self.arguments_key, name_key=self.name_key, before=self.before)
        schema = {
            "type": "array",
            "items": {"anyOf": call["anyOf"]},
            "minItems": 1,
            "$defs": call["$defs"],
        }
        if not parallel:
            schema["maxItems"] = 1
        calls = add_json(rules, "calls", schema)
        opening = one_of([marker(control, each) for each in self.openings])
        closing = f"{SPACE} {marker(control, self.closing)}" if self._closes(control) else ""
        return rules.add("section", f"{opening} {SPACE} {calls} {closing}")

    def read_section(
        self, reader: TextReader, calls: CallWriter, control: ControlTokens, tools: Sequence[Tool]
    ) -> Reading[None]:
        openings = [form for each in self.openings for form in control.forms(each)]
        yield from reader.expect(*openings)
        yield from reader.skip_space()
        yield from self.read_list(reader, calls)
        if self._closes(control) and (yield from reader.is_next(*control.forms(self.closing))):
            yield from reader.skip_space()
            yield from reader.expect(*control.forms(self.closing))

    def _closes(self, control: ControlTokens) -> bool:
        return control.by_token(self.closing) != self.closing

    def read_list(self, reader: TextReader, calls: CallWriter) -> Reading[None]:
        """Read the list.

        Raises:
            BrokenCall: it is none of calls.
        """
        yield from reader.expect("[")
        while True:
            yield from read_json_call(
                reader, calls, arguments_key=self.arguments_key, name_key=self.name_key
            )
            yield from reader.skip_space()
            if (yield from reader.expect("]", ",")) == "]":
                return
