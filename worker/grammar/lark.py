"""Builders for grammars in llguidance's variant of Lark's notation."""

import json
from dataclasses import dataclass, field
from typing import Any

_SPECIAL = frozenset("\\.+*?()|[]{}^$/&~")


@dataclass(slots=True)
class LarkGrammarBuilder:
    """Rules of a grammar, and nested grammars to which they refer as `@name`."""

    lines: list[str] = field(default_factory=list)
    others: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, body: str) -> str:
        """Add a rule and return its name."""
        self.lines.append(f"{name}: {body}")
        return name

    def add_grammar(self, name: str, other: dict[str, Any]) -> str:
        """Add a nested grammar and return the reference to it."""
        self.others[name] = other
        return f"@{name}"

    @property
    def grammar(self) -> str:
        """The whole grammar in llguidance's format; one of the rules must be `start`."""
        parts: list[dict[str, Any]] = [{"lark_grammar": "\n".join(self.lines)}]
        parts += [{"name": name, **other} for name, other in self.others.items()]
        return json.dumps({"grammars": parts})


def literal(text: str) -> str:
    """Return a rule body for a literal text; empty for an empty text."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") if text else ""


def pattern(text: str) -> str:
    """Return a text escaped for a regular expression between slashes."""
    return "".join(f"\\{each}" if each in _SPECIAL else each for each in text).replace("\n", r"\n")


def token(token_id: int) -> str:
    return f"<[{token_id}]>"


def one_of(alternatives: list[str]) -> str:
    return f"({' | '.join(alternatives)})"
