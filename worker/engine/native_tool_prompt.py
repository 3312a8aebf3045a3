"""Tool descriptions for models with a call format of their own whose chat template renders calls
and results but no tools: DeepSeek's. The wording is that of its model cards.

Other models whose template renders no tools use `tool_prompt`.
"""

import json
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from mlx_lm.chat_templates.deepseek_v32 import render_tools

from worker.answer.formats.deepseek import (
    DeepSeekDsmlFormat,
    DeepSeekV3Format,
    DeepSeekV31Format,
)
from worker.answer.formats.known import find_tool_format

Turn = dict[str, Any]
DescribeTools = Callable[[Sequence[Mapping[str, Any]]], str]
"""Describes functions, given in OpenAI's format, in a system message."""

_V3 = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For function call returns, you should first print <｜tool▁calls▁begin｜>
For each function call, you should return object like:
<｜tool▁call▁begin｜>function<｜tool▁sep｜><function_name>
```json
<function_arguments_in_json_format>
```<｜tool▁call▁end｜>
At the end of function call returns, you should print <｜tool▁calls▁end｜><｜end▁of▁sentence｜>"""

_V31 = """\
## Tools
You have access to the following tools:

{tools}

IMPORTANT: ALWAYS adhere to this exact format for tool use:
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments\
<｜tool▁call▁end｜>{{additional_tool_calls}}<｜tool▁calls▁end｜>

Where:
- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces"""


def find_native_tool_prompt(template: object, added_tokens: Container[str]) -> DescribeTools | None:
    """Select the description by the call format detected in the template or the added tokens."""
    text = template if isinstance(template, str) else ""
    return _DESCRIPTIONS.get(find_tool_format(text, added_tokens) or "")


def with_native_tool_prompt(
    turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]], describe: DescribeTools
) -> list[Turn]:
    """Return the conversation with the tools, if there are any, in its system message."""
    if not tools:
        return list(turns)
    description = describe(tools)
    if turns and turns[0]["role"] == "system":
        first, *rest = turns
        return [{**first, "content": f"{first['content']}\n\n{description}"}, *rest]
    return [{"role": "system", "content": description}, *turns]


def _describe_v3(tools: Sequence[Mapping[str, Any]]) -> str:
    described = [_json({"type": "function", "function": tool}) for tool in tools]
    return _V3.format(tools="\n".join(described))


def _describe_v31(tools: Sequence[Mapping[str, Any]]) -> str:
    described = [
        f"### {tool['name']}\nDescription: {tool.get('description', '')}\n\n"
        f"Parameters: {_json(tool.get('parameters', {}))}"
        for tool in tools
    ]
    return _V31.format(tools="\n\n".join(described))


def _describe_dsml(tools: Sequence[Mapping[str, Any]]) -> str:
    return str(render_tools([dict(tool) for tool in tools]))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_DESCRIPTIONS: dict[str, DescribeTools] = {
    DeepSeekV3Format.name: _describe_v3,
    DeepSeekV31Format.name: _describe_v31,
    DeepSeekDsmlFormat.name: _describe_dsml,
}
