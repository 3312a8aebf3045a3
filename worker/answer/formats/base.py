"""What a family of models writes for tool calls."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from worker.answer.calls import CallWriter
from worker.answer.control import ControlTokens
from worker.answer.reader import Reading, TextReader
from worker.grammar.lark import Rules


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that the model may call; `parameters` is the JSON schema of its arguments.

    Of a `strict` one every keyword of the schema must be enforced.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    strict: bool = False


class ToolFormat(Protocol):
    """How calls are written. A *section* is what a trigger begins: one or more calls.

    Attributes:
        name: as in `models.<name>.tool_format`.
        markers: strings that may be added tokens of the vocabulary.
        openings: what a section begins with; an empty one begins with its first call at once.
    """

    name: ClassVar[str]
    markers: ClassVar[tuple[str, ...]]
    openings: ClassVar[tuple[str, ...]]

    def read_head(self, reader: TextReader, names: Collection[str]) -> Reading[None]:
        """Read what follows an opening of ordinary text, up to one of the names, complete.

        Raises:
            BrokenCall: it is not there.
        """
        ...

    def add_section(
        self, rules: Rules, control: ControlTokens, tools: Sequence[Tool], *, parallel: bool
    ) -> str:
        """Add the grammar of a section; returns the rule. `parallel`: it may have several calls.
        The tools' `parameters` are enforced as they are."""
        ...

    def read_section(
        self, reader: TextReader, calls: CallWriter, control: ControlTokens, tools: Sequence[Tool]
    ) -> Reading[None]:
        """Read a section, its opening included.

        Raises:
            BrokenCall: it is none.
        """
        ...


Trigger = Callable[[TextReader], Reading[None]]


def token_trigger(by_token: str) -> Trigger:
    """A section that begins with an added token, which is enough."""

    def read(reader: TextReader) -> Reading[None]:
        yield from reader.expect(by_token)

    return read


def text_trigger(tool_format: ToolFormat, opening: str, names: Collection[str]) -> Trigger:
    """A section that begins with ordinary text: it must name a tool."""

    def read(reader: TextReader) -> Reading[None]:
        yield from reader.expect(opening)
        yield from tool_format.read_head(reader, names)

    return read
