"""Lines that change with every request and stand where prompts begin: what is behind them is never
found kept. Rules take them out, or move them behind what stays the same.

Some programs put a date, a version or an account into the first lines of their system prompt. The
model loses nothing without an account; a date it may read further below.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from shared.messages.request import Turn
from shared.settings.kv_cache import PromptRule

_MOST_LINES = 400
_MOST_LINE_CHARACTERS = 2000
"""Whatever a pattern does, it is asked for that much only."""


def cleaned(messages: Sequence[Turn], rules: Sequence[PromptRule]) -> list[Turn]:
    """Turns after all rules; of each the first lines are looked at."""
    return [_cleaned(message, rules) for message in messages]


def _cleaned(message: Turn, rules: Sequence[PromptRule]) -> Turn:
    content = message["content"]
    for rule in rules:
        if message["role"] in rule.roles:
            content = _applied(content, rule)
    return message if content is message["content"] else {**message, "content": content}


def _applied(content: str, rule: PromptRule) -> str:
    matches = _compiled(rule.pattern).fullmatch
    lines = content.split("\n", _MOST_LINES)
    found = [
        number
        for number, line in enumerate(lines[:_MOST_LINES])
        if len(line) <= _MOST_LINE_CHARACTERS and matches(line)
    ]
    if not found:
        return content
    stay = [line for number, line in enumerate(lines) if number not in found]
    if rule.action == "move":
        stay += [lines[number] for number in found]
    return "\n".join(stay)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
