"""Answers and calls that are bound to a schema, of a model that would say anything else."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from jsonschema import validate
from pydantic import BaseModel, Field

from tests.controller.gateway.gateway_process import GatewayProcess

_SEEDS = range(3)
_ASKED: Any = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}]}
_WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
_PARAMETERS = {"weather": _WEATHER, "now": _NOTHING}
_TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in _PARAMETERS.items()
]


class City(BaseModel):
    name: Literal["Paris", "Rome", "Oslo"]
    people: int = Field(ge=0, le=999_999)
    capital: bool


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def bound_to(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.mark.parametrize("seed", _SEEDS)
def test_an_answer_is_an_instance_of_the_callers_class(client: openai.OpenAI, seed: int) -> None:
    for parse in (client.chat.completions.parse, client.beta.chat.completions.parse):
        answer = parse(**_ASKED, seed=seed, response_format=City)
        assert isinstance(answer.choices[0].message.parsed, City)
        assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_stream_is_parsed_to_the_same(client: openai.OpenAI, seed: int) -> None:
    whole = client.chat.completions.parse(**_ASKED, seed=seed, response_format=City)
    with client.chat.completions.stream(**_ASKED, seed=seed, response_format=City) as stream:
        done = [event for event in stream if event.type == "content.done"]
        streamed = stream.get_final_completion()
    assert done[0].parsed == streamed.choices[0].message.parsed == whole.choices[0].message.parsed
    assert streamed.choices[0].message.content == whole.choices[0].message.content


def test_an_answer_is_some_json_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        **_ASKED, n=8, seed=1, max_tokens=60, response_format={"type": "json_object"}
    )
    ended = [choice for choice in answer.choices if choice.finish_reason == "stop"]
    assert ended and all(isinstance(json.loads(each.message.content or ""), dict) for each in ended)
    assert all((each.message.content or "").startswith("{") for each in answer.choices)


def test_a_format_of_text_binds_nothing(client: openai.OpenAI) -> None:
    fields: Any = {**_ASKED, "seed": 1, "max_tokens": 20}
    free = client.chat.completions.create(**fields)
    text = client.chat.completions.create(**fields, response_format={"type": "text"})
    assert text.choices[0].message.content == free.choices[0].message.content


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("choice", ["required", "weather", "now"])
def test_a_call_that_must_be_is_one_and_valid(
    client: openai.OpenAI, choice: str, seed: int
) -> None:
    named: Any = {"type": "function", "function": {"name": choice}}
    answer = client.chat.completions.create(
        **_ASKED, seed=seed, tools=_TOOLS, parallel_tool_calls=False,
        tool_choice="required" if choice == "required" else named,
    )  # fmt: skip
    message = answer.choices[0].message
    assert message.content is None and message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert call.function.name in (_PARAMETERS if choice == "required" else [choice])
    validate(json.loads(call.function.arguments), _PARAMETERS[call.function.name])
    assert answer.choices[0].finish_reason == "tool_calls"


def test_the_clusters_own_bounds_are_taken_too(client: openai.OpenAI) -> None:
    chosen = client.chat.completions.create(
        **_ASKED, extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert chosen.choices[0].message.content in ("yes", "no")
    plain = client.completions.create(
        model="chat", prompt="Hi", extra_body={"structured_outputs": {"regex": "[ab]{3}"}}
    )
    assert len(plain.choices[0].text) == 3 and set(plain.choices[0].text) <= set("ab")
    plain = client.completions.create(
        model="chat", prompt="Hi", extra_body={"structured_outputs": {"json": _WEATHER}}
    )
    validate(json.loads(plain.choices[0].text), _WEATHER)


_UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
_STRICT = {
    "type": "function",
    "function": {"name": "unique", "strict": True, "parameters": _UNIQUE},
}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": bound_to({"not": {}})}, "response_format.json_schema.schema"),
        ({"response_format": bound_to(_UNIQUE)}, "response_format.json_schema.schema.properties.a"),
        ({"tools": [_TOOLS[0], _STRICT]}, "tools.1.function.parameters.properties.a"),
        ({"structured_outputs": {"json": _UNIQUE}}, "structured_outputs.json.properties.a"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_enforced_is_refused_by_its_place(
    client: openai.OpenAI, fields: dict[str, Any], param: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**_ASKED, stream=stream, extra_body=fields)
    assert (refused.value.code, refused.value.param) == ("invalid_request", param)


def test_an_unusual_tool_that_is_not_strict_is_no_obstacle(client: openai.OpenAI) -> None:
    lenient: Any = {"type": "function", "function": {"name": "unique", "parameters": _UNIQUE}}
    answer = client.chat.completions.create(**_ASKED, tools=[lenient], max_tokens=4)
    assert answer.choices[0].finish_reason == "length"
