"""Families whose calls are tags around values: their tags, as data."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar

from worker.answer.calls import CallDeltaBuilder
from worker.answer.control import ControlTokenCodec
from worker.answer.formats.json_object import HermesFormat
from worker.answer.formats.tagged import TaggedValuesFormat
from worker.answer.formats.tags import CallTags
from worker.answer.reader import Reading, TextReader


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


KIMI_K3_TOKENS = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
"""Added tokens that only this family has."""

_JSON, _JSON_END = '<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>"


class KimiK3Format(TaggedValuesFormat):
    """A section is one call or more, numbered within the section."""

    name: ClassVar[str] = "kimi_k3"
    tags: ClassVar[CallTags] = CallTags(
        sections=(("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),),
        call='<|open|>call tool="',
        number='" index="',
        named='"<|sep|>',
        end="<|close|>call<|sep|>",
        key='<|open|>argument key="',
        typed='" type="',
        keyed='"<|sep|>',
        value_end="<|close|>argument<|sep|>",
        multiple=True,
        types={
            "string": "string",
            "number": "number",
            "integer": "number",
            "boolean": "boolean",
            "null": "null",
            "array": "array",
            "object": "object",
        },
    )
    markers: ClassVar[tuple[str, ...]] = (*tags.markers, _JSON, _JSON_END)
    openings: ClassVar[tuple[str, ...]] = tags.openings

    def encode_name(self, name: str) -> str:
        return name.replace("&", "&amp;").replace('"', "&quot;")

    def decode_name(self, encoded: str) -> str:
        return encoded.replace("&quot;", '"').replace("&amp;", "&")

    def read_arguments(
        self,
        reader: TextReader,
        calls: CallDeltaBuilder,
        control: ControlTokenCodec,
        end: Sequence[str],
    ) -> Reading[bool]:
        """Read a block of JSON."""
        yield from reader.skip_space()
        if not (yield from reader.is_next(*control.forms(_JSON))):
            return False
        yield from reader.expect(*control.forms(_JSON))
        yield from reader.skip_space()
        yield from reader.json_value(calls.write)
        yield from reader.skip_space()
        yield from reader.expect(*control.forms(_JSON_END))
        yield from reader.skip_space()
        yield from reader.expect(*end)
        return True
