"""Nemotron before its third generation: `<TOOLCALL>` and a JSON list."""

from typing import ClassVar

from worker.answer.formats.json_list import JsonListFormat

_OPEN, _CLOSE = "<TOOLCALL>", "</TOOLCALL>"


class NemotronFormat(JsonListFormat):
    """A section is a list of JSON objects."""

    name: ClassVar[str] = "nemotron"
    markers: ClassVar[tuple[str, ...]] = (_OPEN, _CLOSE)
    openings: ClassVar[tuple[str, ...]] = (_OPEN,)
    closing: ClassVar[str] = _CLOSE
