"""Limits of a client's grammar in Lark's notation, checked before llguidance parses it."""

import re
from dataclasses import dataclass, field

from worker.grammar import regex

MAX_LITERAL_CHARACTERS = 4096
MAX_RULES_AND_GROUPS = 1000
"""llguidance compiles them by recursion: 2,000 rules fill a stack of 8 MB."""
MAX_CONJUNCTIONS = 8
"""The cost is exponential in the number of expressions that one text must match."""
MAX_SIZE = 65_536
_MAX_TERMINAL_DEPTH = 100

_DIRECTIVES = frozenset({"%import", "%ignore", "%declare", "%override", "%extend"})
_PART = re.compile(
    r"""//[^\n]* | (?P<string>"(?:\\.|[^"\\\n])*"i?) | (?P<regex>/(?:\\.|[^/\\\n])+/[a-z]*)
    | (?P<directive>%\w+) | (?P<token><[^>\n]*>)
    | (?P<repeat>\{\s*\d+\s*(?:,\s*\d*\s*)?\} | ~\s*\d+(?:\s*\.\.\s*\d+)?)
    | (?P<defined>^[ \t]*[?!_]*[A-Za-z]\w*(?=\s*(?:\[[^\]\n]*\])?(?:\.-?\d+)?\s*:))
    | (?P<name>_*[A-Za-z]\w*) | (?P<open>[(\[]) | (?P<close>[)\]]) | [&~]""",
    re.VERBOSE | re.MULTILINE,
)
_NUMBER = re.compile(r"\d+")


@dataclass(slots=True)
class _Definition:
    """A rule or a terminal.

    Attributes:
        size: number of its characters and parts, with repetitions expanded.
        names: how often each name occurs in it.
    """

    size: int = 0
    names: dict[str, int] = field(default_factory=dict)


def find_problem(grammar: str) -> str | None:
    """Return why a grammar must not be compiled; None if it may be."""
    definitions: dict[str, _Definition] = {}
    groups = conjunctions = 0
    stack = [_Definition()]
    last = _Definition()
    for match in _PART.finditer(grammar):
        text = match.group()
        match match.lastgroup:
            case "string":
                if len(text) > MAX_LITERAL_CHARACTERS:
                    return f"a string of more than {MAX_LITERAL_CHARACTERS} characters"
                last = _Definition(len(text) - 2)
                _add(stack[-1], last)
            case "regex":
                if (found := regex.find_problem(text[1 : text.rindex("/")])) is not None:
                    return found
                last = _Definition(regex.size(text[1 : text.rindex("/")]))
                _add(stack[-1], last)
            case "directive" if text not in _DIRECTIVES:
                return f"{text}: only {', '.join(sorted(_DIRECTIVES))} are allowed"
            case "defined":
                stack = [_Definition()]
                definitions[text.strip(" \t?!")] = stack[0]
            case "name":
                last = _Definition(names={text: 1})
                _add(stack[-1], last)
            case "repeat":
                least = max(1, int(_NUMBER.findall(text)[0][:12]))
                _add(stack[-1], last, least - 1)
            case "open":
                groups += 1
                stack.append(_Definition())
            case "close" if len(stack) > 1:
                last = stack.pop()
                _add(stack[-1], last)
            case None if text in "&~":
                conjunctions += 1
    if groups + len(definitions) > MAX_RULES_AND_GROUPS:
        return f"more than {MAX_RULES_AND_GROUPS} rules and groups"
    if conjunctions > MAX_CONJUNCTIONS:
        return f"more than {MAX_CONJUNCTIONS} of & and ~"
    return _size_problem(definitions)


def _add(to: _Definition, part: _Definition, times: int = 1) -> None:
    to.size += part.size * times
    for name, count in part.names.items():
        to.names[name] = to.names.get(name, 0) + count * times


def _size_problem(definitions: dict[str, _Definition]) -> str | None:
    """Return which definition is too large, with terminals expanded where they are used."""
    sizes: dict[str, int] = {}

    def size(name: str, depth: int = 0) -> int:
        if name not in definitions or not (depth == 0 or name.isupper()):
            return 1
        if depth > _MAX_TERMINAL_DEPTH:
            return MAX_SIZE + 1
        if name not in sizes:
            sizes[name] = 0  # llguidance rejects recursive terminals
            found = definitions[name]
            inner = [count * size(other, depth + 1) for other, count in found.names.items()]
            sizes[name] = found.size + sum(inner)
        return sizes[name]

    for name in definitions:
        if size(name) > MAX_SIZE:
            return f"{name}: more than {MAX_SIZE} characters, or terminals nested too deep"
    return None
