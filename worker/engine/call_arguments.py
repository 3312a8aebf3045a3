"""The arguments of earlier calls as a chat template takes them: most want an object, some the text
of one (DeepSeek's), and fail with the other or write it as Python does. Which, is tried once."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Turn = dict[str, Any]
Render = Callable[[list[Turn]], str | None]
"""A conversation's prompt; None where the template refuses it."""

_KEY, _VALUE = "canary_key", "canary_value"
_ARGUMENTS = {_KEY: _VALUE}
_AS_PYTHON = f"'{_KEY}'"


def takes_text(render: Render) -> bool:
    """Whether a template wants the text of a call's arguments."""
    as_object = render(_conversation(_ARGUMENTS))
    if as_object is not None and _VALUE in as_object and _AS_PYTHON not in as_object:
        return False
    as_text = render(_conversation(json.dumps(_ARGUMENTS)))
    return as_text is not None and _VALUE in as_text


def with_text_arguments(turns: Sequence[Turn]) -> list[Turn]:
    """The conversation with the text of each object."""
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
