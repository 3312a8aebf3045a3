"""What input items mean to the cluster, by value; and forms of failures."""

import asyncio
import json
import time
from typing import Any

import pytest
from openai._models import construct_type
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from controller.gateway.responses.answers import ResponseObjectSerializer
from controller.gateway.responses.items import Item, pack
from controller.gateway.responses.messages import MAX_REASONING_BYTES, messages_of
from controller.gateway.responses.requests import ResponsesRequest
from shared.errors import ClusterError, RequestError
from shared.ids import new_request_id
from shared.messages.stream import ChoiceOutput, Usage

_ITEMS: TypeAdapter[list[Any]] = TypeAdapter(list[Item])
_USAGE = Usage(3, 0, 4)
_CALL = {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"}
_RESULT = {"type": "function_call_output", "call_id": "c", "output": "nine"}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def thought(text: str) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
    }


def shapes(items: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Of each message its role, reasoning, content and number of calls."""
    found = messages_of(_ITEMS.validate_python(items))
    return [
        (each["role"], each.get("reasoning"), each["content"], len(each.get("tool_calls", ())))
        for each in found
    ]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([thought("a"), thought("b"), said("assistant", "c"), _CALL, _CALL, _RESULT],
         [("assistant", "ab", "c", 2), ("tool", None, "nine", 0)]),
        ([_CALL, said("assistant", "a")],
         [("assistant", None, "", 1), ("assistant", None, "a", 0)]),
        ([said("assistant", "a"), thought("b"), _CALL],
         [("assistant", None, "a", 0), ("assistant", "b", "", 1)]),
        ([thought("a"), said("user", "b")], [("assistant", "a", "", 0), ("user", None, "b", 0)]),
        ([thought("a"), {"type": "web_search_call"}, said("assistant", "b")],
         [("assistant", "a", "b", 0)]),
        ([thought(""), said("user", "b")], [("user", None, "b", 0)]),
        ([{"type": "reasoning", "summary": [], "encrypted_content": pack("a")}, _CALL],
         [("assistant", "a", "", 1)]),
        ([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}],
           "encrypted_content": "of another service"}, _CALL],
         [("assistant", "s", "", 1)]),
        ([], []),
    ],
)  # fmt: skip
def test_what_follows_one_another_is_one_answer_as_a_model_could_have_said_it(
    items: list[dict[str, Any]], expected: list[tuple[Any, ...]]
) -> None:
    assert shapes(items) == expected


def test_little_that_unpacks_to_much_is_refused_soon() -> None:
    packed = {"type": "reasoning", "summary": [], "encrypted_content": pack("x" * 1_900_000)}
    items = _ITEMS.validate_python([packed] * 700)
    began = time.process_time()
    with pytest.raises(RequestError) as caught:
        messages_of(items)
    assert caught.value.code == "payload_too_large"
    assert time.process_time() - began < 2  # to unpack all of it takes many times that
    fits = pack("x" * MAX_REASONING_BYTES)
    (message,) = messages_of(_ITEMS.validate_python([packed | {"encrypted_content": fits}]))
    assert len(message["reasoning"]) == MAX_REASONING_BYTES


def form() -> ResponseObjectSerializer:
    return ResponseObjectSerializer(new_request_id(), "chat", ResponsesRequest(input="x"), None)


def events(data: bytes) -> list[dict[str, Any]]:
    return [
        json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: ")
    ]


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("deadline_exceeded", "server_error"),
        ("rate_limit_exceeded", "rate_limit_exceeded"),
        ("invalid_request", "invalid_prompt"),
        ("context_length_exceeded", "context_length_exceeded"),
    ],
)
def test_a_stream_that_fails_is_whole_to_a_client(begun: bool, code: str, told: str) -> None:
    failing = form()
    data = b""
    if begun:
        data = failing.opening(None) + failing.events([ChoiceOutput(0, 0, [1], "It is")])
    came = events(data + failing.failure(ClusterError("too bad", code=code)))
    assert [event["sequence_number"] for event in came] == [*range(len(came))]
    state: Any = ResponseStreamState(input_tools=[], text_format=None)  # type: ignore[arg-type]
    for event in came:
        state.handle_event(construct_type(type_=ResponseStreamEvent, value=event))
    assert came[-1]["response"]["error"]["code"] == told
    assert "too bad" in came[-1]["response"]["error"]["message"]


def test_a_response_that_is_stored_says_so_before_the_end() -> None:
    kept: list[dict[str, Any]] = []

    async def keep(response: dict[str, Any]) -> bool:
        kept.append(response)
        return len(kept) == 1

    for expected in (True, False):
        made = ResponseObjectSerializer(new_request_id(), "chat", ResponsesRequest(input="x"), keep)
        made.opening(None)
        made.events([ChoiceOutput(0, 0, [1], "It is nine.", finish_reason="stop")])
        *_, last = events(asyncio.run(made.closing(_USAGE)))
        assert (last["type"], last["response"]["store"]) == ("response.completed", expected)
    assert kept[0]["output"][0]["content"][0]["text"] == "It is nine."
