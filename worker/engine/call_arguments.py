"""The arguments of earlier tool calls, in the form that a chat template expects.

Most templates expect an object, some (DeepSeek's) its JSON text. They fail on the other form, or
print it as Python does. A trial rendering finds out once per template.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Turn = dict[str, Any]
Render = Callable[[list[Turn]], str | None]
"""Renders a conversation to its prompt; None if the template rejects it."""

_KEY, _VALUE = "canary_key", "canary_value"
_ARGUMENTS = {_KEY: _VALUE}
_AS_PYTHON = f"'{_KEY}'"


def takes_text(render: Render) -> bool:
    """Whether a template expects the arguments of a call as JSON text."""
    as_object = render(_conversation(_ARGUMENTS))
    if as_object is not None and _VALUE in as_object and _AS_PYTHON not in as_object:
        return False
    as_text = render(_conversation(json.dumps(_ARGUMENTS)))
    return as_text is not None and _VALUE in as_text


def with_text_arguments(turns: Sequence[Turn]) -> list[Turn]:
    """Return the conversation with the arguments of all calls as JSON text."""
    return [
        {**turn, "tool_calls": [_with_text(call) for call in turn["tool_calls"]]}
        if turn.get("tool_calls")
        else turn
        for turn in turns
    ]


def _with_text(call: Mapping[str, Any]) -> Turn:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _conversation(arguments: object) -> list[Turn]:
    function = {"name": "look", "arguments": arguments}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    return [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "seen", "tool_call_id": call["id"], "name": "look"},
    ]
