"""A client's grammar in Lark's notation, read roughly before llguidance reads it."""

import re
from dataclasses import dataclass, field

from worker.grammar import regex

MAX_LITERAL_CHARACTERS = 4096
MAX_RULES_AND_GROUPS = 1000
"""They are compiled by recursion: 2,000 rules fill a stack of 8 MB."""
MAX_CONJUNCTIONS = 8
"""The work grows with 2 to the number of expressions that one text must match."""
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
        size: what stands in it, repetitions written out.
        names: what it refers to, and how often.
    """

    size: int = 0
    names: dict[str, int] = field(default_factory=dict)


def problem(grammar: str) -> str | None:
    """Why a grammar is not to be compiled."""
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
                if (found := regex.problem(text[1 : text.rindex("/")])) is not None:
                    return found
                last = _Definition(regex.size(text[1 : text.rindex("/")]))
                _add(stack[-1], last)
            case "directive" if text not in _DIRECTIVES:
                return f"{text}: only {', '.join(sorted(_DIRECTIVES))} are taken"
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


def _add(to: _Definition, what: _Definition, times: int = 1) -> None:
    to.size += what.size * times
    for name, count in what.names.items():
        to.names[name] = to.names.get(name, 0) + count * times


def _size_problem(definitions: dict[str, _Definition]) -> str | None:
    """Terminals are written out where they are used."""
    sizes: dict[str, int] = {}

    def size(name: str, depth: int = 0) -> int:
        if name not in definitions or not (depth == 0 or name.isupper()):
            return 1
        if depth > _MAX_TERMINAL_DEPTH:
            return MAX_SIZE + 1
        if name not in sizes:
            sizes[name] = 0  # a terminal that leads to itself is refused by llguidance
            found = definitions[name]
            inner = [count * size(other, depth + 1) for other, count in found.names.items()]
            sizes[name] = found.size + sum(inner)
        return sizes[name]

    for name in definitions:
        if size(name) > MAX_SIZE:
            return f"{name}: more than {MAX_SIZE} characters, or terminals one in another too deep"
    return None
