"""Text from outside on a terminal. Names, errors, log lines and answers may contain characters that
a terminal obeys, or that change the order of what is read; none of them reaches one."""

import re
import sys
from typing import TextIO

_ESCAPE_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?)")
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""C0 without tab and newline, delete, C1, and overrides of the writing direction."""
_OBEYED_OR_BROKEN = re.compile(rf"[\t\n]|{_OBEYED.pattern}")


def printable(text: str) -> str:
    """Return the text in one line, without escape sequences and control characters."""
    text = _ESCAPE_SEQUENCE.sub("", text)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def escaped(text: str) -> str:
    """Return the text with what a terminal obeys as `\\x1b` or `\\u202e`; keeps newlines, tabs."""
    return _OBEYED.sub(_escape, text)


def escaped_line(text: str) -> str:
    """Return the text as one line: as `escaped`, with `\\n` and `\\t` for newlines and tabs."""
    return _OBEYED_OR_BROKEN.sub(_escape, text)


def for_output(text: str, stream: TextIO | None = None) -> str:
    """Return the text escaped if the stream, by default stdout, is a terminal, else unchanged."""
    return escaped(text) if (stream or sys.stdout).isatty() else text


def _escape(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]
