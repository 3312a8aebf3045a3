"""Limits and rewriting of regular expressions before llguidance compiles them."""

import re

MAX_SIZE = 8192
NEVER_WRITTEN = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f\ufdd0-\ufdef]")
"""Characters that no answer contains: control characters without a short escape in JSON, or that
llguidance excludes from strings, and the placeholders of control tokens."""
_WITHOUT_NUL = r"&&[^\x00]]"

_CODE = re.compile(r"\\[xuU]\{?([0-9a-fA-F]+)\}?")
_NAMED = {r"\0": "\0", r"\a": "\a", r"\v": "\v"}
_SAMPLE = "\b\t\n\f\r" + "".join(map(chr, (*range(0x20, 0x7F), *range(0x80, 0x3000))))
"""Characters that answers contain, enough to classify a character class."""

_PART = re.compile(
    r"""\\[pPxu]\{[^}]*\} | \\x[0-9a-fA-F]{2} | \\u[0-9a-fA-F]{4} | \\U[0-9a-fA-F]{8} | \\.
    | \[\^?\]?(?:\\.|[^\]\\])*\] | (?P<repeat>\{\d+(?:,\d*)?\})
    | \(\?[a-zA-Z-]*\) | (?P<open>\((?:\?(?:P?<\w+>|[a-zA-Z-]*:))?) | .""",
    re.VERBOSE | re.DOTALL,
)


def size(expression: str) -> int:
    """Return the number of characters, classes and escapes, with minimum repetitions expanded."""
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


def find_problem(expression: str) -> str | None:
    """Return why an expression must not be compiled; None if it may be."""
    if len(expression) > 8 * MAX_SIZE or size(expression) > MAX_SIZE:
        return f"a regular expression of more than {MAX_SIZE} characters with repetitions expanded"
    if (len(expression) - len(expression.rstrip("\\"))) % 2:
        return "the regular expression ends within an escape"
    return None


def find_never_written(expression: str) -> str | None:
    """Return a character that the expression requires but no answer contains; None without one.
    llguidance would match nothing in its place."""
    for match in _PART.finditer(expression):
        part = match.group()
        if match["repeat"] is None and (found := _never_written(part)) is not None:
            return found
    return None


def _never_written(part: str) -> str | None:
    """Return a character of `NEVER_WRITTEN` if a part of an expression matches only such."""
    if NEVER_WRITTEN.fullmatch(part):
        return part
    if (code := _CODE.fullmatch(part)) is not None:
        character = chr(min(int(code[1], 16), 0x10FFFF))
        return character if NEVER_WRITTEN.fullmatch(character) else None
    if part in _NAMED:
        return _NAMED[part]
    if not part.startswith("[") or len(part) == 1 or _is_compound(part):
        return None
    try:
        found = re.compile(part)
    except re.error:  # syntax that Python does not support
        return None
    if found.search(_SAMPLE):
        return None
    return next((chr(code) for code in range(0x80) if found.match(chr(code))), None)


def within_json(expression: str) -> str:
    """Return the expression for a JSON string, with U+0000 removed from classes.

    If a class contains all control characters but not `"` or `\\`, llguidance allows these two
    nevertheless, after a `\\`. Without U+0000 in the class it does not.
    """
    if _WITHOUT_NUL in expression:
        return expression
    return _PART.sub(_without_nul, expression)


def _without_nul(match: re.Match[str]) -> str:
    part = match.group()
    is_class = part.startswith(("[", "\\P")) and len(part) > 1
    return f"[{part}{_WITHOUT_NUL}" if is_class and _is_misread(part) else part


def _is_compound(character_class: str) -> bool:
    """Whether a class has syntax that Python's classes lack."""
    return any(sign in character_class[1:] for sign in ("[", "&&", "--", "~~", "\\p", "\\P"))


def _is_misread(character_class: str) -> bool:
    if _is_compound(character_class):
        return True
    try:
        found = re.compile(character_class)
    except re.error:  # syntax that Python does not support
        return True
    return bool(found.match("\0")) and not (found.match('"') and found.match("\\"))
