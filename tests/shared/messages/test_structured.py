"""Tools, schemas and template values of a request: what is refused, and where it says the fault
is."""

from typing import Any

import orjson
import pytest

from shared.errors import InvalidRequest
from shared.messages.request_parsing import parse_measured
from shared.messages.schemas import MAX_SCHEMA_BYTES, MAX_SCHEMA_NODES

MESSAGES = [{"role": "user", "content": "Hello"}]


def tool(name: str = "now", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def of_schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


FAULTS: list[tuple[dict[str, Any], str, str]] = [
    (of_schema(5), "response_format.json_schema.schema", "a schema is an object"),
    (of_schema(nested(70)), "response_format", "32 levels"),
    (of_schema({"enum": [""] * MAX_SCHEMA_NODES}), "response_format.json_schema.schema", "values"),
    (of_schema({"const": "x" * MAX_SCHEMA_BYTES}), "response_format.json_schema.schema", "bytes"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "json_schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    ({"response_format": "json"}, "response_format", "object"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"json": 5}}, "structured_outputs.json", "an object"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1"),
    ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice.1", "at least 1"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "at least 1"),
    ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml", "unknown field"),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "structured_outputs",
        "says already",
    ),
    ({"tools": [tool("a b")]}, "tools.0.function.name", "pattern"),
    ({"tools": [tool("</tool_call>")]}, "tools.0.function.name", "pattern"),
    ({"tools": [tool(), tool()]}, "tools", "now is defined twice"),
    ({"tools": [tool(parameters=nested(70))]}, "tools", "32 levels"),
    ({"tools": [tool(parameters=[])]}, "tools.0.function.parameters", "an object"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type", "function"),
    ({"tools": [tool()], "tool_choice": "now"}, "tool_choice", "must be `none`"),
    ({"tools": [tool()], "tool_choice": tool("later")}, "tool_choice", "no tool later"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs.a b", "no valid variable name"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "is reserved"),
    (
        {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        "chat_template_kwargs.chat_template",
        "is reserved",
    ),
    ({"reasoning_effort": "huge"}, "reasoning_effort", "medium"),
    ({"thinking_budget": -1}, "thinking_budget", "greater than or equal to 0"),
]


@pytest.mark.parametrize(("body", "param", "words"), FAULTS)
def test_a_fault_is_named_with_its_place(body: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_measured(orjson.dumps({"messages": MESSAGES, **body}))
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}: ") and words in caught.value.message
    assert len(caught.value.message) < 500


def test_numbers_beyond_json_are_refused_in_a_schema() -> None:
    payload = b'{"prompt": "x", "structured_outputs": {"json": {"const": 1%s}}}' % (b"0" * 30)
    with pytest.raises(InvalidRequest, match="beyond JSON") as caught:
        parse_measured(payload)
    assert caught.value.param == "structured_outputs.json"
