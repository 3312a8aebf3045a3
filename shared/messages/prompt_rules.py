"""Rules for lines near the start of a prompt that change with every request: nothing after such a
line is found in the prefix cache. Rules remove the lines, or move them behind the constant text.

Some programs put a date, a version or an account into the first lines of their system prompt. An
account can be removed without loss; a date can be read further below.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from shared.messages.conversation import Turn
from shared.settings.kv_cache import PromptLineRule

_MAX_LINES = 400
_MAX_LINE_CHARACTERS = 2000
"""Limits of the text that a pattern is matched against, which bound its cost."""


def cleaned(messages: Sequence[Turn], rules: Sequence[PromptLineRule]) -> list[Turn]:
    """Return the turns after all rules, which apply to the first lines of each turn."""
    return [_cleaned(message, rules) for message in messages]


def _cleaned(message: Turn, rules: Sequence[PromptLineRule]) -> Turn:
    content = message["content"]
    for rule in rules:
        if message["role"] in rule.roles:
            content = _applied(content, rule)
    return message if content is message["content"] else {**message, "content": content}


def _applied(content: str, rule: PromptLineRule) -> str:
    matches = _compiled(rule.pattern).fullmatch
    lines = content.split("\n", _MAX_LINES)
    found = [
        number
        for number, line in enumerate(lines[:_MAX_LINES])
        if len(line) <= _MAX_LINE_CHARACTERS and matches(line)
    ]
    if not found:
        return content
    remaining = [line for number, line in enumerate(lines) if number not in found]
    if rule.action == "move":
        remaining += [lines[number] for number in found]
    return "\n".join(remaining)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
