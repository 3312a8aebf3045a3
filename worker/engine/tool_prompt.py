"""Tool descriptions for models whose chat template does not render tools: in the system message,
with the wording of Nous Hermes (https://github.com/NousResearch/Hermes-Function-Calling)."""

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


_SYSTEM = """\
You may call one or more functions to assist with the user query. You are provided with \
function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>
For each function call return a JSON object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def with_tools_as_text(
    turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return turns with a role and a content only: calls and their results become text."""
    written = [_as_text(turn) for turn in turns]
    if not tools:
        return written
    described = "\n".join(
        json.dumps({"type": "function", "function": tool}, ensure_ascii=False) for tool in tools
    )
    system = _SYSTEM.format(tools=described)
    if written and written[0]["role"] == "system":
        first = written.pop(0)
        system = f"{first['content']}\n\n{system}"
    return [{"role": "system", "content": system}, *written]


def _as_text(turn: Mapping[str, Any]) -> dict[str, Any]:
    content = turn["content"]
    if turn["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    for call in turn.get("tool_calls") or ():
        written = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        line = f"<tool_call>\n{json.dumps(written, ensure_ascii=False)}\n</tool_call>"
        content = f"{content}\n{line}" if content else line
    return {**turn, "content": content}
