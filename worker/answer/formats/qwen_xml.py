"""Qwen3-Coder and those that write as it does (Qwen3.5, Nemotron 3, Step 3.5):
`<tool_call><function=name><parameter=key>value</parameter></function>`; Seed-OSS, too, with tags of
its own around it."""

from dataclasses import replace
from typing import ClassVar

from worker.answer.formats.tagged import TaggedFormat
from worker.answer.formats.tags import Tags


class QwenXmlFormat(TaggedFormat):
    """One call a section; it may stand without the tags of one."""

    name: ClassVar[str] = "qwen3_coder"
    tags: ClassVar[Tags] = Tags(
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


class SeedFormat(TaggedFormat):
    """One call a section; values stand right between their tags."""

    name: ClassVar[str] = "seed_oss"
    tags: ClassVar[Tags] = replace(
        QwenXmlFormat.tags, sections=(("<seed:tool_call>", "</seed:tool_call>"),), line=""
    )
    markers: ClassVar[tuple[str, ...]] = tags.markers
    openings: ClassVar[tuple[str, ...]] = tags.openings
