"""Tools in the words of a model that has a format of its own for calls, and a chat template that
shows calls and their results but no tools: DeepSeek's. The words are those of its model cards.

Other models without tools in their template get them as `tool_prompt` says.
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
ToolWords = Callable[[Sequence[Mapping[str, Any]]], str]
"""From functions as OpenAI describes them."""

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


def find_native_tool_prompt(template: object, added_tokens: Container[str]) -> ToolWords | None:
    """By the format of calls that a template, if it is a text, or a vocabulary shows."""
    text = template if isinstance(template, str) else ""
    return _WORDS.get(find_tool_format(text, added_tokens) or "")


def with_native_tool_prompt(
    turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]], words: ToolWords
) -> list[Turn]:
    """The conversation with the tools, if there are any, in its system message."""
    if not tools:
        return list(turns)
    said = words(tools)
    if turns and turns[0]["role"] == "system":
        first, *rest = turns
        return [{**first, "content": f"{first['content']}\n\n{said}"}, *rest]
    return [{"role": "system", "content": said}, *turns]


def _words_of_v3(tools: Sequence[Mapping[str, Any]]) -> str:
    described = [_json({"type": "function", "function": tool}) for tool in tools]
    return _V3.format(tools="\n".join(described))


def _words_of_v31(tools: Sequence[Mapping[str, Any]]) -> str:
    described = [
        f"### {tool['name']}\nDescription: {tool.get('description', '')}\n\n"
        f"Parameters: {_json(tool.get('parameters', {}))}"
        for tool in tools
    ]
    return _V31.format(tools="\n\n".join(described))


def _words_of_dsml(tools: Sequence[Mapping[str, Any]]) -> str:
    return str(render_tools([dict(tool) for tool in tools]))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_WORDS: dict[str, ToolWords] = {
    DeepSeekV3Format.name: _words_of_v3,
    DeepSeekV31Format.name: _words_of_v31,
    DeepSeekDsmlFormat.name: _words_of_dsml,
}
