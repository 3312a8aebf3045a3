"""MiniMax M2: `<minimax:tool_call><invoke name="name"><parameter name="key">value</parameter>`."""

from typing import ClassVar

from worker.answer.formats.tagged import TaggedValuesFormat
from worker.answer.formats.tags import CallTags


class MiniMaxFormat(TaggedValuesFormat):
    """A section is one call or more."""

    name: ClassVar[str] = "minimax_m2"
    tags: ClassVar[CallTags] = CallTags(
        sections=(("<minimax:tool_call>", "</minimax:tool_call>"),),
        call='<invoke name="',
        named='">',
        end="</invoke>",
        key='<parameter name="',
        keyed='">',
        value_end="</parameter>",
        multiple=True,
    )
    markers: ClassVar[tuple[str, ...]] = tags.markers
    openings: ClassVar[tuple[str, ...]] = tags.openings
