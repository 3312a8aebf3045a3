"""OpenAI's Responses API, through the official `openai` client."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.controller.gateway.gateway_process import GatewayProcess
from tests.controller.gateway.scripts import ARGUMENTS, PATCH, THOUGHT

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
_TOOLS: Any = [
    {"type": "function", "name": "get_weather", "parameters": _WEATHER, "strict": False},
    {"type": "function", "name": "now", "parameters": None, "strict": None},
    {"type": "custom", "name": "patch", "description": "changes a file"},
    {
        "type": "namespace", "name": "mcp", "description": "of others",
        "tools": [{"type": "function", "name": "fetch", "parameters": {"type": "object"}}],
    },
]  # fmt: skip


@pytest.fixture
def client(scripted_gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    url = f"{scripted_gateway.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, asked: Any, *, streamed: bool = False, **fields: Any) -> Response:
    fields = {"model": "chat", "input": asked, **fields}
    if not streamed:
        response: Response = client.responses.create(**fields)
        return response
    *_, last = client.responses.create(stream=True, **fields)
    ended: Response = last.response
    return ended


def said(response: Response) -> list[dict[str, Any]]:
    """The items without their ids."""
    found = [item.to_dict() for item in response.output]
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in found]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_call_is_made_and_its_result_is_answered(client: openai.OpenAI, streamed: bool) -> None:
    asked = [{"role": "user", "content": "one call, please"}]
    called = ask(client, asked, tools=_TOOLS, streamed=streamed)
    _, call = called.output
    assert call.type == "function_call" and json.loads(call.arguments) == ARGUMENTS
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "4711 degrees"}
    history = [*asked, *(item.to_dict() for item in called.output), result]
    answer = ask(client, history, tools=_TOOLS, streamed=streamed)
    assert (answer.status, answer.output_text) == ("completed", "It is warm.")


def test_what_was_thought_comes_as_it_is_asked_for(client: openai.OpenAI) -> None:
    plain = ask(client, "nine").output[0]
    assert plain.type == "reasoning" and plain.summary == []
    assert [part.text for part in plain.content or ()] == [THOUGHT]
    told = ask(
        client, "nine", reasoning={"summary": "auto"}, include=["reasoning.encrypted_content"]
    ).output[0]
    assert told.type == "reasoning" and told.content is None
    assert [part.text for part in told.summary] == [THOUGHT] and told.encrypted_content


@pytest.mark.parametrize("text", ["two calls", "custom call", "spaced call", "nine"])
def test_a_stream_says_the_same_as_the_whole_answer(client: openai.OpenAI, text: str) -> None:
    whole = ask(client, text, tools=_TOOLS)
    streamed = ask(client, text, tools=_TOOLS, streamed=True)
    assert said(streamed) == said(whole)
    assert whole.usage is not None and streamed.usage is not None
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_custom_tools_and_namespaces_keep_their_names(client: openai.OpenAI) -> None:
    custom = ask(client, "custom call", tools=_TOOLS)
    (call,) = [item for item in said(custom) if "call" in item["type"]]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "patch", PATCH)
    spaced = ask(client, "spaced call", tools=_TOOLS)
    (call,) = [item for item in said(spaced) if "call" in item["type"]]
    assert (call["name"], call["namespace"], call["arguments"]) == ("fetch", "mcp", '{"url": "a"}')
    for response in (custom, spaced):
        made = next(item for item in response.output if "call" in item.type)
        kind = f"{made.type}_output"
        result = {"type": kind, "call_id": made.call_id, "output": "4711"}  # type: ignore[union-attr]
        history: Any = [
            {"role": "user", "content": "x"}, *(item.to_dict() for item in response.output), result
        ]  # fmt: skip
        assert ask(client, history, tools=_TOOLS).output_text == "It is warm."


def test_every_event_is_one_of_the_api(scripted_gateway: GatewayProcess) -> None:
    body = {"model": "chat", "input": "two calls", "tools": _TOOLS, "stream": True}
    url = f"{scripted_gateway.url}/v1/responses"
    answer = httpx.post(url, json=body, timeout=60)
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in data]
    for number, event in enumerate(events):
        _EVENT.validate_python(event)
        assert event["sequence_number"] == number
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    Response.model_validate(events[-1]["response"])


def test_what_the_service_itself_would_run_is_left_out_and_named(
    scripted_gateway: GatewayProcess,
) -> None:
    body = {"model": "chat", "input": "nine", "tools": [*_TOOLS, {"type": "web_search"}]}
    answer = httpx.post(f"{scripted_gateway.url}/v1/responses", json=body, timeout=60)
    assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, "tools.web_search")


def test_a_schema_holds(client: openai.OpenAI) -> None:
    class Hour(BaseModel):
        hour: int

    answer = client.responses.parse(
        model="chat", input="at once", text_format=Hour, reasoning={"effort": "none"}
    )
    assert isinstance(answer.output_parsed, Hour)


def test_what_is_cut_off_is_incomplete(client: openai.OpenAI) -> None:
    for streamed in (False, True):
        answer = ask(client, "nine", max_output_tokens=3, streamed=streamed)
        assert answer.status == "incomplete" and answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"


def test_instructions_and_developers_are_heard(client: openai.OpenAI) -> None:
    turns: Any = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "developer", "content": "And kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "nine"}]},
    ]
    assert ask(client, turns, instructions="You are a clock.").output_text == "It is nine."


def test_what_comes_first_has_the_first_number(scripted_gateway: GatewayProcess) -> None:
    """Also where the first tokens have text at once."""
    body = {"model": "chat", "input": "at once", "reasoning": {"effort": "none"}, "stream": True}
    answer = httpx.post(f"{scripted_gateway.url}/v1/responses", json=body, timeout=60)
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    numbers = [json.loads(line)["sequence_number"] for line in data]
    assert numbers == [*range(len(numbers))]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"input": [{"type": "web_search_call", "n": 10**20}]}, "input"),
        ({"input": [{"type": "web_search_call", "id": {"a": 1}}]}, "input"),
        ({"tools": [{"type": "web_search", "n": 10**20}]}, "tools.0"),
        ({"tools": [{"type": "custom", "name": "a", "format": {"n": -(10**20)}}]}, "tools.0"),
        ({"tool_choice": {"type": "web_search", "n": 10**20}}, "tool_choice"),
        ({"conversation": "c"}, "conversation"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"temperature": 9}, "temperature"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0"),
    ],
)
def test_what_is_wrong_is_told(client: openai.OpenAI, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, fields.pop("input", "x"), **fields)
    assert (caught.value.param or "").startswith(param)
