"""Answers that are values: of pydantic models, and of JSON schemas."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_type

import orjson
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator

from shared.client import Cluster, Completion
from shared.client.typed import read_value, response_format
from shared.errors import InvalidAnswer, InvalidRequest
from shared.messages.request import InferenceRequest
from shared.messages.stream import ChoiceOutput, FinishReason, Usage
from tests.shared.client.simulated_controller import SimulatedController, done

pytestmark = pytest.mark.anyio

USAGE = Usage(9, 0, 40, 7)


class City(BaseModel):
    name: str = Field(max_length=20)
    people: int = Field(ge=0)

    @field_validator("name")
    @classmethod
    def _is_real(cls, name: str) -> str:
        if name == "Atlantis":
            raise ValueError("it has sunk")
        return name


@dataclass
class Place:
    x: float


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    numbers: dict[str, int] = {}


class Map(BaseModel):
    place: Place
    legend: Open


class Tree(BaseModel):
    children: "list[Tree]" = []


class Unwritable(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    cluster: Cluster


PARIS = '{"name": "Paris", "people": 2100000}'
NUMBERS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}


# The request


def test_a_model_becomes_a_schema_under_its_name() -> None:
    found = response_format(City)
    assert (found["type"], found["json_schema"]["name"]) == ("json_schema", "City")
    schema = found["json_schema"]["schema"]
    assert schema["required"] == ["name", "people"]
    assert schema["properties"]["people"]["minimum"] == 0


def test_a_schema_goes_as_it_is() -> None:
    assert response_format(NUMBERS)["json_schema"]["schema"] == NUMBERS


def test_keys_that_a_model_would_pass_over_are_ruled_out() -> None:
    schema = response_format(Map)["json_schema"]["schema"]
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Place"]["additionalProperties"] is False
    legend = schema["$defs"]["Open"]
    assert legend["additionalProperties"] is True
    assert legend["properties"]["numbers"]["additionalProperties"] == {"type": "integer"}
    assert response_format(Tree)["json_schema"]["schema"]["$defs"]["Tree"] == {
        "additionalProperties": False,
        "properties": {
            "children": {
                "default": [],
                "items": {"$ref": "#/$defs/Tree"},
                "title": "Children",
                "type": "array",
            }
        },
        "title": "Tree",
        "type": "object",
    }


@pytest.mark.parametrize("model", [City, Map, Tree, RootModel[list[City]]])
def test_what_a_model_becomes_is_a_request_and_a_schema(model: type[BaseModel]) -> None:
    found = response_format(model)
    Draft202012Validator.check_schema(found["json_schema"]["schema"])
    body = {"prompt": "x", "response_format": found}
    request = InferenceRequest.model_validate_json(orjson.dumps(body))
    assert request.structure is not None and request.structure.kind == "json"
    assert found["json_schema"]["name"].replace("_", "").isalnum()


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (BaseModel, "BaseModel has no JSON schema"),
        (Unwritable, "Unwritable has no JSON schema: Cannot generate"),
        (int, "a pydantic model, or a JSON schema as a dict, not <class 'int'>"),
        (list[City], "a pydantic model, or a JSON schema as a dict, not list"),
        (City(name="Rome", people=1), "a pydantic model, or a JSON schema as a dict"),
        ('{"type": "array"}', "a pydantic model, or a JSON schema as a dict"),
        (True, "a pydantic model, or a JSON schema as a dict"),
        ({"enum": {1, 2}}, "type set is not JSON serializable"),
        ({"minimum": float("nan")}, "float"),
        ({"const": 2**70}, "a number or a character beyond JSON's"),
        ({"const": "\ud800"}, "a number or a character beyond JSON's"),
        ({"enum": ["x" * 300_000]}, "300013 bytes; at most"),
    ],
)
def test_what_is_no_schema_is_refused(schema: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^schema: ") as caught:
        response_format(schema)
    assert says in caught.value.message and "\n" not in caught.value.message
    assert caught.value.param == "schema"


def test_a_schema_within_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["items"] = endless
    with pytest.raises(InvalidRequest, match="schema: Circular"):
        response_format(endless)
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(InvalidRequest, match="nested deeper than 32"):
        response_format(deep)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"response_format": {"type": "text"}}, "`response_format` says already"),
        ({"structured_outputs": {"regex": "a"}}, "`structured_outputs` says already"),
        ({"n": 2}, "it is for a single answer, but `n` is 2"),
        ({"prompt": ["x", "y"]}, "it is for a single answer, but `prompt` is a list"),
        ({"count_only": True}, "there is no answer"),
    ],
)
async def test_what_does_not_go_with_a_schema_is_refused(
    cluster: Cluster, controller: SimulatedController, fields: dict[str, Any], says: str
) -> None:
    fields = {"prompt": "x", **fields}
    with pytest.raises(InvalidRequest) as caught:
        await cluster.generate(schema=City, **fields)
    assert (says in caught.value.message, caught.value.param) == (True, "schema")
    with pytest.raises(InvalidRequest):
        cluster.stream(schema=NUMBERS, **fields)
    assert controller.requests.empty()


async def test_none_of_the_fields_that_bind_an_answer_is_as_good_as_leaving_them_out(
    cluster: Cluster,
) -> None:
    cluster.stream("x", schema=City, response_format=None, structured_outputs=None, n=1)


# The value


async def served(
    controller: SimulatedController, text: str, finish_reason: FinishReason = "stop"
) -> dict[str, Any]:
    """Answer one request; what it was."""
    request, request_id = await controller.next_request()
    output = ChoiceOutput(0, 0, [1], text, finish_reason=finish_reason)
    await controller.send(request, done(request_id, output))
    body: dict[str, Any] = orjson.loads(request.payload)
    return body


async def test_a_model_asked_for_is_a_model_given(
    cluster: Cluster, controller: SimulatedController
) -> None:
    asking = asyncio.ensure_future(cluster.generate("Paris?", schema=City, temperature=0))
    body = await served(controller, PARIS)
    assert (body["response_format"], body["temperature"]) == (response_format(City), 0)
    city = await asyncio.wait_for(asking, 10)
    assert_type(city, City)
    assert city == City(name="Paris", people=2_100_000)


async def test_a_schema_asked_for_is_its_value_given(
    cluster: Cluster, controller: SimulatedController
) -> None:
    asking = asyncio.ensure_future(cluster.generate("Count.", schema=NUMBERS))
    await served(controller, "[1, 2, 9007199254740993]")
    assert await asyncio.wait_for(asking, 10) == [1, 2, 9007199254740993]


async def test_a_stream_with_a_schema_has_its_value_at_the_end(
    cluster: Cluster, controller: SimulatedController
) -> None:
    async with cluster.stream("Paris?", schema=City) as stream:
        collecting = asyncio.ensure_future(stream.collect())
        await served(controller, PARIS)
        answer = await asyncio.wait_for(collecting, 10)
    assert_type(answer, Completion)
    city = answer.value(City)
    assert_type(city, City)
    assert city.people == 2_100_000
    assert answer.value({"type": "object"}) == {"name": "Paris", "people": 2_100_000}


async def test_an_answer_that_broke_off_says_so_and_has_what_came(
    cluster: Cluster, controller: SimulatedController
) -> None:
    asking = asyncio.ensure_future(cluster.generate("Paris?", schema=City, max_tokens=1))
    await served(controller, '{"name": "Pa', "length")
    with pytest.raises(InvalidAnswer, match="give it more with max_tokens") as caught:
        await asyncio.wait_for(asking, 10)
    assert (caught.value.code, caught.value.text) == ("answer_incomplete", '{"name": "Pa')
    assert not caught.value.retryable


def read(
    text: str, finish_reason: FinishReason, schema: type[BaseModel] | Mapping[str, Any] = NUMBERS
) -> Any:
    return read_value(schema, text, finish_reason, USAGE)


@pytest.mark.parametrize(
    ("text", "finish_reason", "code", "says"),
    [
        ("", "length", "answer_incomplete", "after 40 tokens, 7 of them reasoning: give it more"),
        ("[1, 2", "length", "answer_incomplete", "broke off after 40 tokens"),
        ("[1, 2", "cancelled", "answer_incomplete", "was cancelled after 40 tokens"),
        ("12", "length", "answer_incomplete", "broke off"),
        ("1.5", "cancelled", "answer_incomplete", "was cancelled"),
        ("", "tool_calls", "answer_invalid", "called tools instead of answering"),
        ("[1, 2", "stop", "answer_invalid", "the answer is no JSON: Expecting ',' delimiter"),
        ("[NaN]", "stop", "answer_invalid", "NaN is no JSON"),
        ("[" * 100_000, "stop", "answer_invalid", "the answer is no JSON"),
    ],
)
def test_what_is_no_value_says_why(
    text: str, finish_reason: FinishReason, code: str, says: str
) -> None:
    with pytest.raises(InvalidAnswer) as caught:
        read(text, finish_reason)
    assert (caught.value.code, caught.value.text) == (code, text)
    assert says in caught.value.message


@pytest.mark.parametrize(("text", "value"), [("[1, 2]", [1, 2]), ("true", True), ('"a"', "a")])
def test_a_value_that_is_whole_at_the_last_token_is_one(text: str, value: Any) -> None:
    assert read(text, "length") == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"name": "Atlantis", "people": 0}', "the answer is no valid City: name: it has sunk"),
        ('{"name": "Paris"}', "the answer is no valid City: people: Field required"),
        ('{"name": "Paris", "people": -1}', "the answer is no valid City: people: Input should be"),
    ],
)
def test_what_a_model_does_not_take_says_what(text: str, says: str) -> None:
    with pytest.raises(InvalidAnswer) as caught:
        read(text, "stop", City)
    assert (caught.value.code, caught.value.text) == ("answer_invalid", text)
    assert caught.value.message.startswith(says)


async def test_without_a_schema_an_answer_is_a_completion(
    cluster: Cluster, controller: SimulatedController
) -> None:
    asking = asyncio.ensure_future(cluster.generate("Paris?"))
    body = await served(controller, "A city.")
    assert "response_format" not in body
    answer = await asyncio.wait_for(asking, 10)
    assert_type(answer, Completion)
    assert answer.text == "A city."
