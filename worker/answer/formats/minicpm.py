"""MiniCPM5: `<function name="name"><param name="key">value</param></function>`; a value that needs
escapes in XML is in `<![CDATA[...]]>`."""

from collections.abc import Collection
from typing import ClassVar

from worker.answer.formats.tagged import TaggedValuesFormat
from worker.answer.formats.tags import CallTags
from worker.answer.reader import Reading, TextReader


class MiniCpm5Format(TaggedValuesFormat):
    """A section is one call."""

    name: ClassVar[str] = "minicpm5"
    tags: ClassVar[CallTags] = CallTags(
        sections=(("", ""),),
        call='<function name="',
        named='">',
        end="</function>",
        key='<param name="',
        keyed='">',
        value_end="</param>",
        quotes=("<![CDATA[", "]]>"),
        quoted="<&\n",
    )
    markers: ClassVar[tuple[str, ...]] = tags.markers
    openings: ClassVar[tuple[str, ...]] = (tags.call,)

    def read_head(self, reader: TextReader, names: Collection[str]) -> Reading[None]:
        yield from reader.expect(*(f"{name}{self.tags.named}" for name in names))
