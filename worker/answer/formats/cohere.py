"""Cohere's Command R7B and Command A: a JSON list between `<|START_ACTION|>` and `<|END_ACTION|>`,
of objects with `tool_call_id`, `tool_name` and `parameters`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from worker.answer.formats.json_list import JsonListFormat

_OPEN, _CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"


class CohereFormat(JsonListFormat):
    """A section is a list of JSON objects; the ids count the calls of the conversation."""

    name: ClassVar[str] = "cohere"
    markers: ClassVar[tuple[str, ...]] = (_OPEN, _CLOSE)
    openings: ClassVar[tuple[str, ...]] = (_OPEN,)
    closing: ClassVar[str] = _CLOSE
    name_key: ClassVar[str] = "tool_name"
    arguments_key: ClassVar[str] = "parameters"
    before: ClassVar[Mapping[str, Any]] = {
        "tool_call_id": {"type": "string", "pattern": "^[0-9]{1,4}$"}
    }
