"""Tools, and the interface of tool call formats."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from worker.answer.calls import CallDeltaBuilder
from worker.answer.control import ControlTokenCodec
from worker.answer.reader import Reading, TextReader
from worker.grammar.lark import LarkGrammarBuilder


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that the model may call; `parameters` is the JSON schema of its arguments.

    If `strict`, every keyword of the schema must be enforced.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    strict: bool = False


class ToolFormat(Protocol):
    """How a model family writes tool calls. A *section* is one call or more behind one opening.

    Attributes:
        name: the value of `models.<name>.tool_format`.
        markers: strings that may be added tokens of the vocabulary.
        openings: strings that begin a section; an empty one if a call may begin without marker.
    """

    name: ClassVar[str]
    markers: ClassVar[tuple[str, ...]]
    openings: ClassVar[tuple[str, ...]]

    def read_head(self, reader: TextReader, names: Collection[str]) -> Reading[None]:
        """Read what follows an opening of ordinary text, including one of the names.

        Raises:
            BrokenCall: the text is something else.
        """
        ...

    def add_section(
        self,
        rules: LarkGrammarBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
        *,
        parallel: bool,
    ) -> str:
        """Add the grammar of a section and return the name of its rule. With `parallel` a section
        may have several calls. The tools' `parameters` are enforced unchanged."""
        ...

    def read_section(
        self,
        reader: TextReader,
        calls: CallDeltaBuilder,
        control: ControlTokenCodec,
        tools: Sequence[Tool],
    ) -> Reading[None]:
        """Read a section, its opening included.

        Raises:
            BrokenCall: the text is not a section.
        """
        ...


Trigger = Callable[[TextReader], Reading[None]]


def token_trigger(encoded: str) -> Trigger:
    """Return a trigger for an added token, which alone begins a section."""

    def read(reader: TextReader) -> Reading[None]:
        yield from reader.expect(encoded)

    return read


def text_trigger(tool_format: ToolFormat, opening: str, names: Collection[str]) -> Trigger:
    """Return a trigger for ordinary text, which begins a section only if a tool's name follows."""

    def read(reader: TextReader) -> Reading[None]:
        yield from reader.expect(opening)
        yield from tool_format.read_head(reader, names)

    return read
