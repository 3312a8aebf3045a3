"""Tool calls while they are parsed: their deltas, and parsers of calls that are JSON."""

import json
from collections.abc import Collection
from typing import Any

from shared.codec import strict_json
from worker.answer.control import ControlTokenCodec
from worker.answer.parser import CallDelta
from worker.answer.reader import BrokenCall, Reading, TextReader


class CallDeltaBuilder:
    """Collects the pieces of tool calls as deltas. `begin`, `write` and `end` raise BrokenCall.

    Args:
        names: names of the available tools.
        control: spells out the control tokens in arguments.
        count: number of earlier calls of the answer.

    Attributes:
        count: number of calls that have begun, earlier ones included.
    """

    def __init__(self, names: Collection[str], control: ControlTokenCodec, count: int = 0) -> None:
        self._names = names
        self._control = control
        self.count = count
        self._arguments: list[str] = []
        self._deltas: list[CallDelta] = []

    def begin(self, name: str) -> None:
        if name not in self._names:
            raise BrokenCall(f"there is no tool {name[:64]!r}")
        self._arguments = []
        self._deltas.append(CallDelta(self.count, name=name))
        self.count += 1

    def write(self, arguments: str) -> None:
        """Append to the arguments of the current call, as JSON."""
        if arguments := self._control.spell_out(arguments):
            self._arguments.append(arguments)
            self._deltas.append(CallDelta(self.count - 1, arguments))

    def end(self) -> None:
        """Complete the current call; without arguments they become `{}`."""
        if not self._arguments:
            self.write("{}")
        parse_object("".join(self._arguments))

    def take_deltas(self) -> list[CallDelta]:
        """Remove and return the deltas since the last call of this method."""
        deltas, self._deltas = self._deltas, []
        return deltas


def parse_object(text: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        BrokenCall: the text is not a JSON object.
    """
    try:
        value = strict_json(text)
    except (ValueError, RecursionError) as error:
        raise BrokenCall(f"its arguments are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BrokenCall("its arguments are not a JSON object")
    return value


def read_json_head(
    reader: TextReader,
    names: Collection[str],
    *,
    name_key: str = "name",
    before: Collection[str] = (),
) -> Reading[None]:
    """Read `{<name_key>: "..."` with one of the names; the keys `before` may come first.

    Raises:
        BrokenCall: the text is something else.
    """
    yield from reader.skip_space()
    yield from reader.expect("{")
    while True:
        yield from reader.skip_space()
        key = yield from reader.expect(*(f'"{each}"' for each in (name_key, *before)))
        yield from reader.skip_space()
        yield from reader.expect(":")
        yield from reader.skip_space()
        if key == f'"{name_key}"':
            break
        yield from reader.json_value(len)
        yield from reader.skip_space()
        yield from reader.expect(",")
    yield from reader.expect(*(json.dumps(name, ensure_ascii=False) for name in names))


def read_json_call(
    reader: TextReader, calls: CallDeltaBuilder, *, arguments_key: str, name_key: str = "name"
) -> Reading[None]:
    """Read `{<name_key>: ..., <arguments_key>: {...}}`; other keys are ignored.

    Raises:
        BrokenCall: the text is something else.
    """
    name, early = None, ""
    yield from reader.skip_space()
    yield from reader.expect("{")
    while True:
        key = yield from _read_value(reader)
        yield from reader.skip_space()
        yield from reader.expect(":")
        yield from reader.skip_space()
        if key == name_key and name is None:
            name = yield from _read_value(reader)
            if not isinstance(name, str):
                raise BrokenCall("its name is not a string")
            calls.begin(name)
            calls.write(early)
        elif key == arguments_key and name is not None:
            yield from reader.json_value(calls.write)
        elif key == arguments_key:
            pieces: list[str] = []
            yield from reader.json_value(pieces.append)
            early = "".join(pieces)
        else:
            yield from _read_value(reader)
        yield from reader.skip_space()
        if (yield from reader.expect(",", "}")) == "}":
            break
    if name is None:
        raise BrokenCall("it has no name")
    calls.end()


def read_json_calls(
    reader: TextReader, calls: CallDeltaBuilder, *, arguments_key: str, name_key: str = "name"
) -> Reading[None]:
    """Read a JSON list of such objects.

    Raises:
        BrokenCall: the text is something else.
    """
    yield from reader.expect("[")
    while True:
        yield from read_json_call(reader, calls, arguments_key=arguments_key, name_key=name_key)
        yield from reader.skip_space()
        if (yield from reader.expect("]", ",")) == "]":
            return


def _read_value(reader: TextReader) -> Reading[Any]:
    pieces: list[str] = []
    yield from reader.skip_space()
    yield from reader.json_value(pieces.append)
    try:
        return json.loads("".join(pieces))
    except (ValueError, RecursionError) as error:
        raise BrokenCall(f"it is not JSON: {error}") from None
