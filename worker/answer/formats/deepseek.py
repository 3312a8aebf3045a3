"""DeepSeek: JSON between tokens, in a code block (V3, R1) or alone (V3.1); since V3.2 "DSML": tags
with values, each marked as a string or not."""

from typing import ClassVar

from worker.answer.formats.named_json import NameThenJsonFormat
from worker.answer.formats.tagged import TaggedValuesFormat
from worker.answer.formats.tags import CallTags

_CALL, _NAMED = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_DSML = "｜DSML｜"


class DeepSeekV3Format(NameThenJsonFormat):
    """Each call has the type `function`, and its arguments are a code block."""

    name: ClassVar[str] = "deepseek_v3"
    open: ClassVar[str] = "<｜tool▁calls▁begin｜>"
    close: ClassVar[str] = "<｜tool▁calls▁end｜>"
    call: ClassVar[str] = f"{_CALL}function{_NAMED}"
    arguments: ClassVar[str] = "\n```json\n"
    call_end: ClassVar[str] = "\n```<｜tool▁call▁end｜>"
    markers: ClassVar[tuple[str, ...]] = (open, close, call, call_end)
    openings: ClassVar[tuple[str, ...]] = (open,)


class DeepSeekV31Format(NameThenJsonFormat):
    """A call is a name and JSON."""

    name: ClassVar[str] = "deepseek_v31"
    open: ClassVar[str] = "<｜tool▁calls▁begin｜>"
    close: ClassVar[str] = "<｜tool▁calls▁end｜>"
    call: ClassVar[str] = _CALL
    arguments: ClassVar[str] = _NAMED
    call_end: ClassVar[str] = "<｜tool▁call▁end｜>"
    markers: ClassVar[tuple[str, ...]] = (open, close, call, arguments, call_end)
    openings: ClassVar[tuple[str, ...]] = (open,)


class DeepSeekDsmlFormat(TaggedValuesFormat):
    """A section of one call or more: `function_calls` in V3.2, `tool_calls` in V4."""

    name: ClassVar[str] = "deepseek_dsml"
    tags: ClassVar[CallTags] = CallTags(
        sections=(
            (f"<{_DSML}function_calls>", f"</{_DSML}function_calls>"),
            (f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>"),
        ),
        call=f'<{_DSML}invoke name="',
        named='">',
        end=f"</{_DSML}invoke>",
        key=f'<{_DSML}parameter name="',
        typed='" string="',
        keyed='">',
        value_end=f"</{_DSML}parameter>",
        multiple=True,
        types={
            "string": "true",
            **dict.fromkeys(("null", "boolean", "integer", "number", "array", "object"), "false"),
        },
    )
    markers: ClassVar[tuple[str, ...]] = tags.markers
    openings: ClassVar[tuple[str, ...]] = tags.openings
