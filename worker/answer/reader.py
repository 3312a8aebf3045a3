"""Incremental parsing: parsers are generators that yield whenever they need more text."""

import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]

_JSON_SPACE = " \t\n\r"
_PLAIN = re.compile(r'[^"\\]+')
_STRUCTURE = re.compile(r'[^"{}\[\]]+')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]+")
_MAX_DEPTH = 256


class BrokenCall(Exception):
    """The model's text is not a valid tool call."""


class TextReader:
    """A text that arrives in pieces, and the read position; `ended` if no more will arrive."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self.ended = False

    def feed(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    @property
    def rest(self) -> str:
        """The text that arrived and was not read."""
        return self._text[self._at :]

    def skip(self, characters: int) -> None:
        self._at += characters

    def peek(self) -> Reading[str]:
        """Return the next character; `""` at the end."""
        while self._at >= len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def skip_space(self) -> Reading[None]:
        while (character := (yield from self.peek())) and character in _JSON_SPACE:
            self._at += 1

    def expect(self, *literals: str) -> Reading[str]:
        """Read the longest of the literals that follows, and return it.

        Raises:
            BrokenCall: something else follows.
        """
        while True:
            rest = self.rest
            undecided = [each for each in literals if each.startswith(rest) and each != rest]
            if not undecided or self.ended:
                matching = [each for each in literals if rest.startswith(each)]
                if not matching:
                    raise BrokenCall(f"{literals[0]!r} is missing")
                longest = max(matching, key=len)
                self._at += len(longest)
                return longest
            yield

    def is_next(self, *literals: str) -> Reading[bool]:
        """Whether one of the literals follows, after optional white space; reads nothing."""
        while True:
            rest = self.rest.lstrip(_JSON_SPACE)
            if rest.startswith(literals):
                return True
            if self.ended or not any(literal.startswith(rest) for literal in literals):
                return False
            yield

    def match(self, characters: "re.Pattern[str]", expected: str) -> Reading[str]:
        """Read as many characters as match, at least one; the pattern is a repeated class.

        Raises:
            BrokenCall: no character matches; the message names what was `expected`.
        """
        matched = ""
        while (yield from self.peek()):
            found = characters.match(self._text, self._at)
            if found is None:
                break
            matched += found.group()
            self._at = found.end()
        if not matched:
            raise BrokenCall(f"{expected} is missing")
        return matched

    def read_until(self, emit: Callable[[str], object], *literals: str) -> Reading[str]:
        """Emit the text before the first of the literals as it arrives; read and return that one.

        Raises:
            BrokenCall: the text ended first.
        """
        while True:
            rest = self.rest
            certain, found = search(rest, 0, literals)
            if certain:
                emit(rest[:certain])
            self._at += certain + len(found)
            if found:
                return found
            if self.ended:
                raise BrokenCall(f"{literals[0]!r} is missing")
            yield

    def json_value(self, emit: Callable[[str], object]) -> Reading[None]:
        """Emit the characters of one JSON value as they arrive. Finds the end of the value only:
        the caller checks the whole for being JSON.

        Raises:
            BrokenCall: no value begins here, or the value does not end.
        """
        first = yield from self.peek()
        if first and first in '"{[':
            yield from self._nested(emit)
            return
        emit((yield from self.match(_SCALAR, "a JSON value")))

    def _nested(self, emit: Callable[[str], object]) -> Reading[None]:
        depth, in_string = 0, False
        while True:
            character = yield from self.peek()
            if not character:
                raise BrokenCall("the JSON value does not end")
            plain = (_PLAIN if in_string else _STRUCTURE).match(self._text, self._at)
            if plain is not None:
                emit(plain.group())
                self._at = plain.end()
                continue
            width = 1
            if in_string and character == "\\":
                width = 2
                while len(self._text) - self._at < width:
                    if self.ended:
                        raise BrokenCall("the JSON value does not end")
                    yield
            elif character == '"':
                in_string = not in_string
            else:
                depth += 1 if character in "{[" else -1
                if depth > _MAX_DEPTH:
                    raise BrokenCall(f"it is nested deeper than {_MAX_DEPTH}")
            emit(self._text[self._at : self._at + width])
            self._at += width
            if depth == 0 and not in_string:
                return


def run_reading(reading: Reading[Any]) -> bool:
    """Run a parser as far as its text allows; returns whether the parser is done."""
    try:
        next(reading)
    except StopIteration:
        return True
    return False


def attempt(parser: Callable[[TextReader], Reading[Any]], text: str) -> int | None:
    """Return how many characters a parser reads from the start of a text: None while that depends
    on what follows, 0 if the parser does not accept the text."""
    reader = TextReader()
    reader.feed(text)
    try:
        done = run_reading(parser(reader))
    except BrokenCall:
        return 0
    return len(text) - len(reader.rest) if done else None


def search(text: str, at: int, literals: Sequence[str]) -> tuple[int, str]:
    """Return the index of the first of some literals, and that literal. Without one the literal is
    empty, and the index is where one may still begin."""
    found = [(index, literal) for literal in literals if (index := text.find(literal, at)) >= 0]
    if found:
        return min(found, key=lambda each: each[0])
    longest = max(map(len, literals), default=1) - 1
    for index in range(max(at, len(text) - longest), len(text)):
        if any(literal.startswith(text[index:]) for literal in literals):
            return index, ""
    return len(text), ""
