"""Names of the tools of OpenAI's Responses API as the model sees them.

The model sees functions only. A `custom` tool, which takes free text, becomes a function with one
string argument. A tool in a `namespace` gets the namespace as a prefix of its name.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import orjson

Kind = Literal["function", "custom"]
_SEPARATOR = "__"
INPUT = "input"
"""The only argument of a custom tool."""


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool as the caller defined it."""

    kind: Kind
    name: str
    namespace: str | None = None


class ToolNameMap:
    """Finds tools by the names that the model uses."""

    def __init__(self, tools: Iterable[DeclaredTool]) -> None:
        self._tools = {flat_name(tool.name, tool.namespace): tool for tool in tools}

    def find(self, name: str) -> DeclaredTool:
        """Return the tool; a function of this name if the caller defined no such tool."""
        return self._tools.get(name, DeclaredTool("function", name))


def flat_name(name: str, namespace: str | None) -> str:
    return name if not namespace else f"{namespace}{_SEPARATOR}{name}"


def wrapped_input(text: str) -> str:
    """Return the arguments of the function for a custom tool."""
    return orjson.dumps({INPUT: text}).decode()


def unwrapped_input(arguments: str) -> str:
    """Return the text for a custom tool; the arguments themselves if they are truncated."""
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = parsed.get(INPUT) if isinstance(parsed, dict) else None
    return text if isinstance(text, str) else arguments
