"""Regular expressions before they are compiled: how large they are, and what they allow."""

import re

MAX_SIZE = 8192
UNWRITTEN = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f\ufdd0-\ufdef]")
"""Control characters that JSON has no letter for, or that llguidance leaves out of strings;
noncharacters, which stand for control tokens."""
_WITHOUT_NUL = r"&&[^\x00]]"

_CODE = re.compile(r"\\[xuU]\{?([0-9a-fA-F]+)\}?")
_NAMED = {r"\0": "\0", r"\a": "\a", r"\v": "\v"}
_WRITTEN = "\b\t\n\f\r" + "".join(map(chr, (*range(0x20, 0x7F), *range(0x80, 0x3000))))
"""Of what is written, enough to know a class by."""

_PART = re.compile(
    r"""\\[pPxu]\{[^}]*\} | \\x[0-9a-fA-F]{2} | \\u[0-9a-fA-F]{4} | \\U[0-9a-fA-F]{8} | \\.
    | \[\^?\]?(?:\\.|[^\]\\])*\] | (?P<repeat>\{\d+(?:,\d*)?\})
    | \(\?[a-zA-Z-]*\) | (?P<open>\((?:\?(?:P?<\w+>|[a-zA-Z-]*:))?) | .""",
    re.VERBOSE | re.DOTALL,
)


def size(expression: str) -> int:
    """Its characters, classes and escapes, each as often as it must be repeated."""
    sizes, last = [0], 0
    for match in _PART.finditer(expression):
        part = match.group()
        if match["repeat"] is not None:
            least = int(part.strip("{}").split(",")[0][:12])
            sizes[-1] += last * (max(1, least) - 1)
            last *= max(1, least)
        elif match["open"] is not None:
            sizes.append(0)
            last = 0
        elif part == ")":
            last = sizes.pop() if len(sizes) > 1 else 0
            sizes[-1] += last
        elif part not in "*+?|":
            last = 1
            sizes[-1] += 1
    return sum(sizes)


def problem(expression: str) -> str | None:
    """Why it is not to be compiled."""
    if len(expression) > 8 * MAX_SIZE or size(expression) > MAX_SIZE:
        return f"a regular expression of more than {MAX_SIZE} characters, repetitions written out"
    if (len(expression) - len(expression.rstrip("\\"))) % 2:
        return "the regular expression ends within an escape"
    return None


def unwritten(expression: str) -> str | None:
    """A character that is never written, where only that one would do: llguidance takes nothing
    for it, and goes on behind it."""
    for match in _PART.finditer(expression):
        part = match.group()
        if match["repeat"] is None and (found := _only(part)) is not None:
            return found
    return None


def _only(part: str) -> str | None:
    """What is never written, if a part of an expression is just that."""
    if UNWRITTEN.fullmatch(part):
        return part
    if (code := _CODE.fullmatch(part)) is not None:
        character = chr(min(int(code[1], 16), 0x10FFFF))
        return character if UNWRITTEN.fullmatch(character) else None
    if part in _NAMED:
        return _NAMED[part]
    if not part.startswith("[") or len(part) == 1 or _is_compound(part):
        return None
    try:
        found = re.compile(part)
    except re.error:  # what Python does not know
        return None
    if found.search(_WRITTEN):
        return None
    return next((chr(code) for code in range(0x80) if found.match(chr(code))), None)


def within_json(expression: str) -> str:
    """The same expression for a string of JSON, without U+0000, which is never written.

    Where a class has all control characters, but not `"` or `\\`, llguidance has these written all
    the same, with a `\\` before them. Without U+0000 it does not.
    """
    if _WITHOUT_NUL in expression:
        return expression
    return _PART.sub(_without_nul, expression)


def _without_nul(match: re.Match[str]) -> str:
    part = match.group()
    is_class = part.startswith(("[", "\\P")) and len(part) > 1
    return f"[{part}{_WITHOUT_NUL}" if is_class and _is_misread(part) else part


def _is_compound(character_class: str) -> bool:
    """Whether it has what Python's classes have not."""
    return any(sign in character_class[1:] for sign in ("[", "&&", "--", "~~", "\\p", "\\P"))


def _is_misread(character_class: str) -> bool:
    if _is_compound(character_class):
        return True
    try:
        found = re.compile(character_class)
    except re.error:  # what Python does not know
        return True
    return bool(found.match("\0")) and not (found.match('"') and found.match("\\"))
