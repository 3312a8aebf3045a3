"""Pieces of grammars in llguidance's variant of Lark's notation."""

import json
from dataclasses import dataclass, field
from typing import Any

_SPECIAL = frozenset("\\.+*?()|[]{}^$/&~")


@dataclass(slots=True)
class Rules:
    """Rules of a grammar, and other grammars that they refer to as `@name`."""

    lines: list[str] = field(default_factory=list)
    others: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, body: str) -> str:
        """A rule; returns its name."""
        self.lines.append(f"{name}: {body}")
        return name

    def refer(self, name: str, other: dict[str, Any]) -> str:
        """Another grammar; returns what refers to it."""
        self.others[name] = other
        return f"@{name}"

    @property
    def grammar(self) -> str:
        """All of it, as llguidance takes it; one of the rules is `start`."""
        parts: list[dict[str, Any]] = [{"lark_grammar": "\n".join(self.lines)}]
        parts += [{"name": name, **other} for name, other in self.others.items()]
        return json.dumps({"grammars": parts})


def literal(text: str) -> str:
    """A text as it is; nothing where it is empty."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") if text else ""


def pattern(text: str) -> str:
    """A text as a part of a regular expression between slashes."""
    return "".join(f"\\{each}" if each in _SPECIAL else each for each in text).replace("\n", r"\n")


def token(token_id: int) -> str:
    return f"<[{token_id}]>"


def one_of(alternatives: list[str]) -> str:
    return f"({' | '.join(alternatives)})"
