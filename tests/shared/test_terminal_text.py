"""No text from outside makes a terminal do anything."""

import io
import logging

import pytest

from shared.cli.logs import _line
from shared.logs import _TerminalFormatter
from shared.messages.logs import LogRecord
from shared.terminal_text import escaped, escaped_line, for_output, printable

_TITLE = "\x1b]0;owned\x07"
_HOSTILE = [
    "\x1b[2J", _TITLE, "\x9b31m", "\x9d0;x\x9c", "\x07", "\x08", "\r", "\x7f", "\x00", "\x0b",
    "\u202etxt.exe", "\u2066x\u2069", "\x85",
]  # fmt: skip


def _obeys(text: str) -> bool:
    """Whether a terminal would do anything but show the text."""
    return any(
        (ord(c) < 0x20 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0
        or 0x202A <= ord(c) <= 0x202E or 0x2066 <= ord(c) <= 0x2069
        for c in text
    )  # fmt: skip


@pytest.mark.parametrize("hostile", _HOSTILE)
def test_controls_are_shown_instead_of_obeyed(hostile: str) -> None:
    assert _obeys(hostile)
    for made in (escaped, escaped_line, printable):
        assert not _obeys(made(f"a{hostile}b"))
    assert escaped(f"a{hostile}").startswith("a\\")


def test_other_text_stays() -> None:
    text = "Grüße, 世界 👩‍👩‍👧 שלום \\x1b\n\tdone"
    assert escaped(text) == text
    assert escaped_line(text) == text.replace("\n", "\\n").replace("\t", "\\t")


def test_a_sequence_in_pieces_is_escaped_too() -> None:
    assert "".join(map(escaped, ("\x1b", "[2", "J"))) == "\\x1b[2J"


def test_only_a_terminal_gets_other_characters_than_were_sent() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert for_output(_TITLE, io.StringIO()) == _TITLE
    assert for_output(_TITLE, Terminal()) == "\\x1b]0;owned\\x07"


@pytest.mark.parametrize("hostile", _HOSTILE)
def test_a_log_line_is_one_record_whatever_a_client_sent(hostile: str) -> None:
    text = f"x{hostile}\n12:00:00.000 error  worker w  forged"
    record = LogRecord(
        time="2026-01-01T12:00:00.000+00:00", level="info", kind="gateway", id=text,
        message=text, fields={"request_id": text, text: 1},
    )  # fmt: skip
    first, *rest = _line(record).replace("\x1b[", "").split("\n")
    assert not _obeys("".join((first, *rest)))
    assert len(rest) == 1 and rest[0].startswith("    12:00"), "those of the message, indented"
    entry = logging.LogRecord("x", logging.INFO, "", 0, "%s", (text,), None)
    lines = _TerminalFormatter("%(message)s").format(entry).split("\n")
    assert not _obeys("".join(lines)) and lines[1].startswith("    12:00")
