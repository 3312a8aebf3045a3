"""LongCat: `<longcat_tool_call>` with tags like GLM's (LongCat-Flash-Lite, LongCat-Flash-Thinking
of 2026), or with a JSON object like Hermes's (LongCat-Flash-Chat)."""

from typing import ClassVar

from worker.answer.formats.hermes import HermesFormat
from worker.answer.formats.tagged import TaggedValuesFormat
from worker.answer.formats.tags import CallTags

_OPEN, _CLOSE = "<longcat_tool_call>", "</longcat_tool_call>"


class LongcatFormat(TaggedValuesFormat):
    """A section is one call."""

    name: ClassVar[str] = "longcat"
    tags: ClassVar[CallTags] = CallTags(
        sections=((_OPEN, _CLOSE),),
        call="",
        named="",
        end="",
        key="<longcat_arg_key>",
        keyed="</longcat_arg_key>",
        value="<longcat_arg_value>",
        value_end="</longcat_arg_value>",
    )
    markers: ClassVar[tuple[str, ...]] = tags.markers
    openings: ClassVar[tuple[str, ...]] = tags.openings


class LongcatJsonFormat(HermesFormat):
    """A section is one call."""

    name: ClassVar[str] = "longcat_json"
    open: ClassVar[str] = _OPEN
    close: ClassVar[str] = _CLOSE
    markers: ClassVar[tuple[str, ...]] = (open, close)
    openings: ClassVar[tuple[str, ...]] = (open,)
