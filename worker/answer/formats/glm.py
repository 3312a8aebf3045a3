"""GLM since 4.5, and Laguna:
`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`."""

from typing import ClassVar

from worker.answer.formats.tagged import TaggedValuesFormat
from worker.answer.formats.tags import CallTags


class GlmFormat(TaggedValuesFormat):
    """A section is one call. GLM 4.5 and 4.6 write each part on its own line, 4.7 does not."""

    name: ClassVar[str] = "glm"
    tags: ClassVar[CallTags] = CallTags(
        sections=(("<tool_call>", "</tool_call>"),),
        call="",
        named="",
        end="",
        key="<arg_key>",
        keyed="</arg_key>",
        value="<arg_value>",
        value_end="</arg_value>",
    )
    markers: ClassVar[tuple[str, ...]] = tags.markers
    openings: ClassVar[tuple[str, ...]] = tags.openings
