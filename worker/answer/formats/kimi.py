"""Kimi K2: a section of calls between tokens; each call is `functions.<name>:<number>` and JSON."""

from typing import ClassVar

from worker.answer.formats.named_json import NameThenJsonFormat
from worker.grammar.lark import literal

_PREFIX = "functions."


class KimiFormat(NameThenJsonFormat):
    """The number counts the calls of the conversation."""

    name: ClassVar[str] = "kimi_k2"
    open: ClassVar[str] = "<|tool_calls_section_begin|>"
    close: ClassVar[str] = "<|tool_calls_section_end|>"
    call: ClassVar[str] = "<|tool_call_begin|>"
    arguments: ClassVar[str] = "<|tool_call_argument_begin|>"
    call_end: ClassVar[str] = "<|tool_call_end|>"
    markers: ClassVar[tuple[str, ...]] = (open, close, call, arguments, call_end)
    openings: ClassVar[tuple[str, ...]] = (open,)

    def call_head(self, name: str) -> str:
        return f"{_PREFIX}{name}:"

    def name_rule(self, name: str) -> str:
        return f"{literal(f'{_PREFIX}{name}:')} /[0-9]{{1,4}}/"

    def decode_name(self, encoded: str) -> str:
        return encoded.removeprefix(_PREFIX).rpartition(":")[0] or encoded
