"""Granite 3 and Phi-4-mini: `<|tool_call|>` and a JSON list; Phi-4-mini adds a closing marker. The
opening of Granite 3.1 is `<tool_call>`."""

from typing import ClassVar

from worker.answer.control import ControlTokenCodec
from worker.answer.formats.json_list import JsonListFormat

_OPEN, _CLOSE = "<|tool_call|>", "<|/tool_call|>"


class GraniteFormat(JsonListFormat):
    """A section is a list of JSON objects."""

    name: ClassVar[str] = "granite"
    markers: ClassVar[tuple[str, ...]] = (_OPEN, _CLOSE)
    openings: ClassVar[tuple[str, ...]] = (_OPEN, "<tool_call>")
    closing: ClassVar[str] = _CLOSE

    def closes(self, control: ControlTokenCodec) -> bool:
        return control.encode(_CLOSE) != _CLOSE  # only Phi-4-mini has this token
