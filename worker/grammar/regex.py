"""How large a regular expression is before it is compiled."""

import re

MAX_SIZE = 8192

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
            least = int(part.strip("{}").split(",")[0])
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
