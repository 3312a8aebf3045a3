"""Regular expressions before they are compiled: how large they are, and what they allow."""

import re

MAX_SIZE = 8192
_WITHOUT_NUL = r"&&[^\x00]]"

_PART = re.compile(
    r"""\\[pPxu]\{[^}]*\} | \\. | \[\^?\]?(?:\\.|[^\]\\])*\] | (?P<repeat>\{\d+(?:,\d*)?\})
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


def _is_misread(character_class: str) -> bool:
    if any(sign in character_class[1:] for sign in ("[", "&&", "--", "~~", "\\p", "\\P")):
        return True
    try:
        found = re.compile(character_class)
    except re.error:  # what Python does not know
        return True
    return bool(found.match("\0")) and not (found.match('"') and found.match("\\"))
