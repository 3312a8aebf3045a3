"""Answers as OpenAI has published them: every body and event is valid by its own client's types,
taken strictly, and by its OpenAPI description where OPENAI_OPENAPI names that file.

(github.com/openai/openai-openapi; the test that needs it is skipped without.)
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from openai import BaseModel
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import TypeAdapter
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from tests.controller.gateway.gateway_process import GatewayProcess

_USER = {"role": "user"}
_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
_CHAT_TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": _PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
_TOOLS = [
    {"type": "function", "name": "get_weather", "parameters": _PARAMETERS},
    {"type": "function", "name": "now"},
    {"type": "custom", "name": "patch", "description": "changes a file"},
    {
        "type": "namespace",
        "name": "mcp",
        "description": "of others",
        "tools": [{"type": "function", "name": "fetch", "parameters": {"type": "object"}}],
    },
]
_SCHEMA = {
    "type": "object",
    "properties": {"hour": {"enum": [9]}},
    "required": ["hour"],
    "additionalProperties": False,
}
_SAID = ("nine", "one call", "two calls", "custom call", "spaced call")
_CHATS: list[dict[str, Any]] = [
    *({"messages": [_USER | {"content": said}], "tools": _CHAT_TOOLS} for said in _SAID[:3]),
    {"messages": [_USER | {"content": "nine"}], "logprobs": True, "top_logprobs": 2, "n": 2},
    {"messages": [_USER | {"content": "nine"}], "max_tokens": 2},
    {
        "messages": [_USER | {"content": "at once"}],
        "reasoning_effort": "none",
        "response_format": {"type": "json_object"},
        "max_tokens": 50,
    },
]
_RESPONSES: list[dict[str, Any]] = [
    *({"input": said, "tools": _TOOLS} for said in _SAID),
    {
        "input": "nine",
        "instructions": "Be brief.",
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
        "top_logprobs": 2,
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "parallel_tool_calls": False,
        "store": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "truncation": "auto",
        "user": "ada",
    },
    {"input": "nine", "max_output_tokens": 2},
    {"input": "one call", "tools": _TOOLS[:1], "tool_choice": "required"},
    {
        "input": "one call",
        "tools": _TOOLS[:1],
        "tool_choice": {"type": "function", "name": "get_weather"},
    },
    {
        "input": "at once",
        "reasoning": {"effort": "none"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": _SCHEMA}},
    },
    {"input": "at once", "tools": [{"type": "web_search"}]},
]
_TEXTS: list[dict[str, Any]] = [
    {"prompt": "Hi", "max_tokens": 3, "logprobs": 2},
    {"prompt": ["a", "b"], "max_tokens": 2, "n": 2},
]
_LONG = {"role": "user", "content": "x " * 140_000}
"""More than the model's context."""

_REQUESTS = [
    pytest.param(path, body, id=f"{path.rpartition('/')[2]}-{number}")
    for path, bodies in (
        ("/v1/chat/completions", _CHATS),
        ("/v1/completions", _TEXTS),
        ("/v1/responses", _RESPONSES),
    )
    for number, body in enumerate(bodies)
]
_SHAPES: dict[str, tuple[type[BaseModel], Any, str, str]] = {
    "/v1/chat/completions": (
        ChatCompletion,
        ChatCompletionChunk,
        "CreateChatCompletionResponse",
        "CreateChatCompletionStreamResponse",
    ),
    "/v1/completions": (
        Completion,
        Completion,
        "CreateCompletionResponse",
        "CreateCompletionResponse",
    ),
    "/v1/responses": (Response, ResponseStreamEvent, "Response", "ResponseStreamEvent"),
}
"""The client's types of a body and of an event, and the description's names of them."""


def _with_null(schema: Any) -> Any:
    """What the description calls `nullable`, as JSON Schema says it."""
    match schema:
        case dict():
            found = {name: _with_null(value) for name, value in schema.items()}
            return {"anyOf": [found, {"type": "null"}]} if found.get("nullable") is True else found
        case list():
            return [_with_null(each) for each in schema]
    return schema


def _distance(wrong: list[ValidationError]) -> tuple[bool, int]:
    return any("type" in error.path for error in wrong), len(wrong)


def _nearest(error: ValidationError) -> ValidationError:
    """Of a choice of shapes the deepest one of that which fits best."""
    while error.context:
        branches: dict[Any, list[ValidationError]] = {}
        for each in error.context:
            branches.setdefault(each.schema_path[0], []).append(each)
        error = min(branches.values(), key=_distance)[0]
    return error


class Published:
    """OpenAI's description."""

    def __init__(self, file: Path) -> None:
        whole = json.loads(file.read_bytes())
        resource = DRAFT202012.create_resource(_with_null(whole))
        self._registry = Registry().with_resource("urn:openai", resource)

    def check(self, name: str, value: Any) -> None:
        """Raises AssertionError for what is wrong."""
        schema = {"$ref": f"urn:openai#/components/schemas/{name}"}
        validator = Draft202012Validator(schema, registry=self._registry)
        found = [_nearest(error) for error in validator.iter_errors(value)]
        wrong = [f"{error.json_path}: {error.message[:300]}" for error in found]
        assert not wrong, wrong


@pytest.fixture(scope="module")
def published() -> Published:
    if (file := os.environ.get("OPENAI_OPENAPI")) is None:
        pytest.skip("OPENAI_OPENAPI names no file of OpenAI's description")
    return Published(Path(file))


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]


def strictly(shape: Any, value: Any) -> None:
    """Valid by a type, without any conversion."""
    TypeAdapter(shape).validate_json(json.dumps(value), strict=True)


@pytest.fixture(scope="module")
def asked(scripted_gateway: GatewayProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=scripted_gateway.url, timeout=60) as client:
        yield client


@pytest.mark.parametrize(("path", "body"), _REQUESTS)
def test_answers_are_of_the_clients_types(
    asked: httpx.Client, path: str, body: Mapping[str, Any]
) -> None:
    whole_shape, event_shape, _, _ = _SHAPES[path]
    whole = asked.post(path, json={"model": "chat", **body})
    assert whole.status_code == 200, whole.text
    strictly(whole_shape, whole.json())
    if path == "/v1/completions":  # the types of its chunks are those of the whole
        return
    for event in events(asked.post(path, json={"model": "chat", "stream": True, **body})):
        strictly(event_shape, event)


@pytest.mark.parametrize(("path", "body"), _REQUESTS)
def test_answers_are_as_published(
    asked: httpx.Client, published: Published, path: str, body: Mapping[str, Any]
) -> None:
    _, _, whole_name, event_name = _SHAPES[path]
    whole = asked.post(path, json={"model": "chat", **body})
    published.check(whole_name, whole.json())
    if path == "/v1/completions":  # likewise
        return
    for event in events(asked.post(path, json={"model": "chat", "stream": True, **body})):
        published.check(event_name, event)


def stored_and_others(asked: httpx.Client) -> dict[str, Any]:
    """Bodies of the paths that are asked with GET, by the description's names of them."""
    told = asked.post("/v1/responses", json={"model": "chat", **_RESPONSES[2]}).json()
    path = f"/v1/responses/{told['id']}"
    return {
        "Response": asked.get(path).json(),
        "ResponseItemList": asked.get(f"{path}/input_items").json(),
        "ListModelsResponse": asked.get("/v1/models").json(),
        "Model": asked.get("/v1/models/chat").json(),
    }


def test_what_is_read_back_is_of_the_clients_types(asked: httpx.Client) -> None:
    found = stored_and_others(asked)
    strictly(Response, found["Response"])
    strictly(ResponseItemList, found["ResponseItemList"])
    strictly(Model, found["Model"])


def test_what_is_read_back_is_as_published(asked: httpx.Client, published: Published) -> None:
    for name, body in stored_and_others(asked).items():
        published.check(name, body)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_errors_are_as_published(asked: httpx.Client, published: Published, path: str) -> None:
    name = "input" if "responses" in path else "messages"
    for wrong in ({name: 1}, {name: [_LONG]}, {name: "x", "model": "none"}):
        answer = asked.post(path, json={"model": "chat", **wrong})
        assert answer.status_code >= 400
        published.check("ErrorResponseApp", answer.json())


def test_a_response_that_fails_is_one_of_the_api(
    asked: httpx.Client, scripted_gateway: GatewayProcess
) -> None:
    """By its time, which is over in the middle."""
    body = {"model": "chat", "input": "forever", "stream": True, "timeout_ms": 1500}
    lines: list[str] = []
    with (
        asked.stream("POST", "/v1/responses", json=body) as answer,
        contextlib.suppress(httpx.RemoteProtocolError),  # it breaks off
    ):
        lines += (line for line in answer.iter_lines() if line.startswith("data: "))
    last = json.loads(lines[-1][6:])
    strictly(ResponseStreamEvent, last)
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert "timeout_ms" in last["response"]["error"]["message"]
