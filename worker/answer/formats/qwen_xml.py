"""Qwen3-Coder, Qwen3.5, Nemotron 3 and Step 3.5:
`<tool_call><function=name><parameter=key>value</parameter></function>`; Seed-OSS has another outer
tag."""

from dataclasses import replace
from typing import ClassVar

from worker.answer.formats.tagged import TaggedValuesFormat
from worker.answer.formats.tags import CallTags


class QwenXmlFormat(TaggedValuesFormat):
    """A section is one call; its outer tags are optional."""

    name: ClassVar[str] = "qwen3_coder"
    tags: ClassVar[CallTags] = CallTags(
        sections=(("<tool_call>", "</tool_call>"), ("", "")),
        call="<function=",
        named=">",
        end="</function>",
        key="<parameter=",
        keyed=">",
        value_end="</parameter>",
        line="\n",
    )
    markers: ClassVar[tuple[str, ...]] = tags.markers
    openings: ClassVar[tuple[str, ...]] = tags.openings


class SeedFormat(TaggedValuesFormat):
    """A section is one call; values have no line breaks around them."""

    name: ClassVar[str] = "seed_oss"
    tags: ClassVar[CallTags] = replace(
        QwenXmlFormat.tags, sections=(("<seed:tool_call>", "</seed:tool_call>"),), line=""
    )
    markers: ClassVar[tuple[str, ...]] = tags.markers
    openings: ClassVar[tuple[str, ...]] = tags.openings
