"""For parsers that are written as generators: a text that comes in pieces.

A parser is a generator that yields whenever it needs more text than has come.
"""

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
    """What the model wrote is no tool call."""


class TextReader:
    """A text and how far it was read; `ended` when no more will come."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self.ended = False

    def feed(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    @property
    def rest(self) -> str:
        """What came and was not read."""
        return self._text[self._at :]

    def skip(self, characters: int) -> None:
        self._at += characters

    def peek(self) -> Reading[str]:
        """The next character; empty at the end."""
        while self._at >= len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def skip_space(self) -> Reading[None]:
        while (character := (yield from self.peek())) and character in _JSON_SPACE:
            self._at += 1

    def expect(self, *literals: str) -> Reading[str]:
        """Take one of these: the longest that is there.

        Raises:
            BrokenCall: something else follows.
        """
        while True:
            rest = self.rest
            may_be = [each for each in literals if each.startswith(rest) and each != rest]
            if not may_be or self.ended:
                there = [each for each in literals if rest.startswith(each)]
                if not there:
                    raise BrokenCall(f"{literals[0]!r} is missing")
                longest = max(there, key=len)
                self._at += len(longest)
                return longest
            yield

    def is_next(self, *literals: str) -> Reading[bool]:
        """Whether one of these follows, behind white space perhaps; nothing is taken."""
        while True:
            rest = self.rest.lstrip(_JSON_SPACE)
            if rest.startswith(literals):
                return True
            if self.ended or not any(literal.startswith(rest) for literal in literals):
                return False
            yield

    def take(self, characters: "re.Pattern[str]", what: str) -> Reading[str]:
        """As much as matches, which must be something; the pattern is of single characters.

        Raises:
            BrokenCall: nothing does; `what` was expected.
        """
        taken = ""
        while (yield from self.peek()):
            found = characters.match(self._text, self._at)
            if found is None:
                break
            taken += found.group()
            self._at = found.end()
        if not taken:
            raise BrokenCall(f"{what} is missing")
        return taken

    def read_until(self, emit: Callable[[str], object], *literals: str) -> Reading[str]:
        """Pass on the text before the first of these as it comes, take that and return it.

        Raises:
            BrokenCall: the end came first.
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
        """Pass on the characters of one JSON value as they come. Only its extent is looked at:
        whether it is JSON must be asked of the whole.

        Raises:
            BrokenCall: no value begins here, or it does not end.
        """
        first = yield from self.peek()
        if first and first in '"{[':
            yield from self._nested(emit)
            return
        emit((yield from self.take(_SCALAR, "a JSON value")))

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
    """Go on with a parser as far as its text allows; whether it is done."""
    try:
        next(reading)
    except StopIteration:
        return True
    return False


def attempt(parser: Callable[[TextReader], Reading[Any]], text: str) -> int | None:
    """How many characters a parser takes from the start of a text; None while that depends on
    what follows, and 0 where it is not what the parser reads."""
    reader = TextReader()
    reader.feed(text)
    try:
        done = run_reading(parser(reader))
    except BrokenCall:
        return 0
    return len(text) - len(reader.rest) if done else None


def search(text: str, at: int, literals: Sequence[str]) -> tuple[int, str]:
    """Where the first of some literals begins, and which; an empty one where none does, and the
    place behind which one may yet turn out to begin."""
    found = [(place, literal) for literal in literals if (place := text.find(literal, at)) >= 0]
    if found:
        return min(found, key=lambda each: each[0])
    longest = max(map(len, literals), default=1) - 1
    for place in range(max(at, len(text) - longest), len(text)):
        if any(literal.startswith(text[place:]) for literal in literals):
            return place, ""
    return len(text), ""
