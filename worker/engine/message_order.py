"""Reorders messages for the model's chat template.

All templates accept one system message and alternating turns of user and assistant. Beyond that
they differ: some reject other orders, others omit messages silently. What a template accepts is
found once, when it is loaded, by rendering trial conversations: every text must be in the result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Turn = dict[str, Any]
Render = Callable[[list[Turn]], str | None]
"""Renders a conversation to its prompt; None if the template rejects it."""

_SEPARATOR = "\n\n"
_CALL: Turn = {
    "id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": {}}
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MessageOrderRules:
    """What a chat template accepts.

    Attributes:
        system: a system message.
        without_user: a conversation without a turn of the user.
        later_system: a system message after other turns, in the middle and at the end.
        repeated_roles: two successive turns of the user, or of the assistant.
        user_after_tool: a turn of the user after the result of a call.
        assistant_first: a conversation that starts with the assistant.
    """

    system: bool = True
    without_user: bool = True
    later_system: bool = True
    repeated_roles: bool = True
    user_after_tool: bool = True
    assistant_first: bool = True


def find_order(render: Render) -> MessageOrderRules:
    """Find out by trial renderings what a template accepts."""
    system = _is_whole(render, ["system", "user"])
    return MessageOrderRules(
        system=system,
        without_user=_is_whole(render, ["system"]) and _is_whole(render, ["assistant"]),
        later_system=_is_whole(render, ["user", "assistant", "system", "user"])
        and _is_whole(render, ["user", "system"]),
        repeated_roles=_is_whole(render, ["user", "user", "assistant", "assistant", "user"]),
        user_after_tool=_is_whole(render, ["user", "call", "tool", "user"]),
        assistant_first=_is_whole(render, ["assistant", "user"]),
    )


def ordered(turns: Sequence[Turn], order: MessageOrderRules) -> tuple[list[Turn], list[str]]:
    """Return the conversation in an order that the template accepts, and descriptions of changes.

    Leading system messages are merged. Later ones become user messages at the same position, or
    after the results of calls if they are before these; successive turns of one role are joined.
    """
    changes: list[str] = []
    leading = 0
    while leading < len(turns) and turns[leading]["role"] == "system":
        leading += 1
    system, rest = list(turns[:leading]), list(turns[leading:])
    if leading > 1:
        system = [{**system[0], "content": _SEPARATOR.join(each["content"] for each in system)}]
        changes.append("the leading system messages were merged")
    lacks_user = not order.without_user and not _has(rest, "user")
    if system and (not order.system or (lacks_user and not rest)):
        system = [_as_user(system[0])]
        changes.append("the system message became a user message")
    elif rest and (lacks_user or (rest[0]["role"] == "assistant" and not order.assistant_first)):
        rest = [{"role": "user", "content": ""}, *rest]
        changes.append("an empty user message was inserted before the first message")
    if not order.later_system and _has(rest, "system"):
        rest = _without_system(rest)
        changes.append("a later system message became a user message")
    found = [*system, *rest]
    if not order.repeated_roles:
        found = _joined(found)
        if len(found) < len(system) + len(rest):
            changes.append("successive turns of one role were joined")
    if not order.user_after_tool:
        before = len(found)
        found = _with_results_last(found)
        if len(found) < before:
            changes.append("a user message after a tool's result was appended to the result")
    return found, changes


def _is_whole(render: Render, roles: Sequence[str]) -> bool:
    """Whether the prompt has every text of a trial conversation, in order."""
    contents = [f"canary{number}{role}" for number, role in enumerate(roles)]
    turns = [_canary(role, text) for role, text in zip(roles, contents, strict=True)]
    prompt = render(turns)
    if prompt is None:
        return False
    at = 0
    for text in contents:
        at = prompt.find(text, at)
        if at < 0:
            return False
    return True


def _canary(role: str, text: str) -> Turn:
    match role:
        case "call":
            return {"role": "assistant", "content": text, "tool_calls": [_CALL]}
        case "tool":
            return {"role": role, "content": text, "tool_call_id": _CALL["id"], "name": "look"}
        case _:
            return {"role": role, "content": text}


def _has(turns: Sequence[Turn], role: str) -> bool:
    return any(turn["role"] == role for turn in turns)


def _as_user(turn: Turn) -> Turn:
    return {"role": "user", "content": turn["content"]}


def _without_system(turns: Sequence[Turn]) -> list[Turn]:
    """Turn system messages into user messages; one between a call and its results moves after the
    results."""
    found: list[Turn] = []
    held: list[Turn] = []
    for index, turn in enumerate(turns):
        if turn["role"] != "system":
            if turn["role"] != "tool":
                found += held
                held = []
            found.append(turn)
            continue
        later = (each["role"] for each in turns[index + 1 :] if each["role"] != "system")
        (held if next(later, None) == "tool" or held else found).append(_as_user(turn))
    return found + held


def _joined(turns: Sequence[Turn]) -> list[Turn]:
    found: list[Turn] = []
    for turn in turns:
        last = found[-1] if found else None
        if last is not None and _may_join(last, turn):
            found[-1] = _join(last, turn)
        else:
            found.append(turn)
    return found


def _may_join(first: Turn, second: Turn) -> bool:
    same = first["role"] == second["role"] in ("user", "assistant")
    return same and not first.get("tool_calls")


def _join(first: Turn, second: Turn) -> Turn:
    joined = {**first, **second}
    for name in ("content", "reasoning"):
        parts = [text for text in (first.get(name), second.get(name)) if text]
        if parts:
            joined[name] = _SEPARATOR.join(parts)
    if first.get("name") != second.get("name"):
        joined.pop("name", None)
    return joined


def _with_results_last(turns: Sequence[Turn]) -> list[Turn]:
    found: list[Turn] = []
    for turn in turns:
        if turn["role"] == "user" and found and found[-1]["role"] == "tool":
            found[-1] = {
                **found[-1],
                "content": _SEPARATOR.join((found[-1]["content"], turn["content"])),
            }
        else:
            found.append(turn)
    return found
