"""Incremental conversion of Python literals to JSON."""

import ast
import json
import re
from collections.abc import Callable

from worker.answer.reader import BrokenCall, Reading, TextReader
from worker.answer.schema_types import escaped

Emit = Callable[[str], object]

_KEYWORD = re.compile(r"[^\s=(),'\"\ufdd0-\ufdef]+")
_WORD = re.compile(r"[-+.0-9A-Za-z_]+")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_QUOTES = ("'", '"')
_ESCAPES = {
    "n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0",
    "\n": "", "\\": "\\", "'": "'", '"': '"',
}  # fmt: skip
_CODE_DIGITS = {"x": 2, "u": 4, "U": 8}
_MAX_DEPTH = 64


def read_arguments(reader: TextReader, emit: Emit) -> Reading[None]:
    """Read `(key=value, ...)` and emit a JSON object.

    Raises:
        BrokenCall: the text is something else.
    """
    yield from reader.expect("(")

    keywords: set[str] = set()

    def read_key() -> Reading[None]:
        keyword = yield from reader.match(_KEYWORD, "a keyword")
        if keyword in keywords:
            raise BrokenCall(f"the argument {keyword[:64]!r} occurs twice")
        keywords.add(keyword)
        emit(f'"{escaped(keyword)}": ')
        yield from reader.skip_space()
        yield from reader.expect("=")

    yield from _read_members(reader, emit, ")", "{}", read_key, _MAX_DEPTH)


def _read_members(
    reader: TextReader,
    emit: Emit,
    close: str,
    brackets: str,
    read_key: Callable[[], Reading[None]],
    depth: int,
) -> Reading[None]:
    """Read members up to `close` and emit them within `brackets`, a pair of JSON's."""
    if depth == 0:
        raise BrokenCall(f"it is nested deeper than {_MAX_DEPTH}")
    emit(brackets[0])
    yield from reader.skip_space()
    first = True
    while (yield from reader.peek()) != close:
        emit("" if first else ", ")
        first = False
        yield from read_key()
        yield from _read_value(reader, emit, depth - 1)
        yield from reader.skip_space()
        if (yield from reader.peek()) != close:
            yield from reader.expect(",")
            yield from reader.skip_space()
    yield from reader.expect(close)
    emit(brackets[1])


def _read_value(reader: TextReader, emit: Emit, depth: int) -> Reading[None]:
    yield from reader.skip_space()

    def read_key() -> Reading[None]:
        yield from _read_string(reader, emit)
        yield from reader.skip_space()
        yield from reader.expect(":")
        emit(": ")

    def read_nothing() -> Reading[None]:
        yield from ()

    match (yield from reader.peek()):
        case "{":
            reader.skip(1)
            yield from _read_members(reader, emit, "}", "{}", read_key, depth)
        case "[":
            reader.skip(1)
            yield from _read_members(reader, emit, "]", "[]", read_nothing, depth)
        case quote if quote in _QUOTES:
            yield from _read_string(reader, emit)
        case _:
            emit(_as_json((yield from reader.match(_WORD, "a value"))))


def _read_string(reader: TextReader, emit: Emit) -> Reading[None]:
    quote = yield from reader.expect(*_QUOTES)
    emit('"')
    while (yield from reader.read_until(lambda text: emit(escaped(text)), quote, "\\")) != quote:
        yield from _read_escape(reader, emit)
    emit('"')


def _read_escape(reader: TextReader, emit: Emit) -> Reading[None]:
    """Read what follows a backslash; if it is not one of Python's escapes, both are text."""
    character = yield from _take(reader, 1)
    if (digits := _CODE_DIGITS.get(character)) is None:
        emit(escaped(_ESCAPES.get(character, f"\\{character}")))
        return
    code = yield from _take(reader, digits)
    try:
        number = int(code, 16)
        # As an escape of JSON, since two of them may be a surrogate pair.
        emit(f"\\u{number:04x}" if number < 0x10000 else escaped(chr(number)))
    except (ValueError, OverflowError):
        raise BrokenCall(f"\\{character}{code} is not a character") from None


def _take(reader: TextReader, count: int) -> Reading[str]:
    characters = ""
    while len(characters) < count:
        character = yield from reader.peek()
        if not character:
            raise BrokenCall("the string does not end")
        characters += character
        reader.skip(1)
    return characters


def _as_json(word: str) -> str:
    """Convert a word to JSON; a number that is valid JSON stays as written."""
    word = _WORDS.get(word, word)
    try:
        json.loads(word)
    except ValueError:
        try:
            word = json.dumps(ast.literal_eval(word), allow_nan=False)
        except (ValueError, SyntaxError, TypeError, RecursionError):
            raise BrokenCall(f"{word[:64]!r} is not a value") from None
    return word
