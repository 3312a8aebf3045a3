"""Kimi K3 ("XTML"): `<|open|>call tool="name" index="1"<|sep|>` and typed arguments, within
`<|open|>tools<|sep|>`."""

from collections.abc import Sequence
from typing import ClassVar

from worker.answer.calls import CallDeltaBuilder
from worker.answer.control import ControlTokenCodec
from worker.answer.formats.tagged import TaggedValuesFormat
from worker.answer.formats.tags import CallTags
from worker.answer.reader import Reading, TextReader

TOKENS = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
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
