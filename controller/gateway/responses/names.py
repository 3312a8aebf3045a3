"""Tools of OpenAI's Responses API as the model knows them: functions alone, each with one name.

A `custom` tool, which takes free text, is a function of one string; one in a `namespace` has that
before its name.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import orjson

Kind = Literal["function", "custom"]
_BETWEEN = "__"
INPUT = "input"
"""The one argument of a custom tool."""


@dataclass(frozen=True, slots=True)
class KnownTool:
    """As the caller named it."""

    kind: Kind
    name: str
    namespace: str | None = None


class ToolNames:
    """By the names that the model knows."""

    def __init__(self, tools: Iterable[KnownTool]) -> None:
        self._tools = {flat_name(tool.name, tool.namespace): tool for tool in tools}

    def find(self, name: str) -> KnownTool:
        """What the model calls by a name; a function where it is none of the caller's."""
        return self._tools.get(name, KnownTool("function", name))


def flat_name(name: str, namespace: str | None) -> str:
    return name if not namespace else f"{namespace}{_BETWEEN}{name}"


def wrapped_input(text: str) -> str:
    """The arguments of a function that stands for a custom tool."""
    return orjson.dumps({INPUT: text}).decode()


def unwrapped_input(arguments: str) -> str:
    """The text for a custom tool; the arguments themselves where they were cut off."""
    try:
        found = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = found.get(INPUT) if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments
