"""Tools, thinking and schemas, through the official `anthropic` client."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.controller.gateway.gateway_process import GatewayProcess
from tests.controller.gateway.scripts import ARGUMENTS, THOUGHT

_WEATHER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
_TOOLS: Any = [
    {"name": "get_weather", "description": "the weather", "input_schema": _WEATHER},
    {"name": "now", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
]
_THINKS: Any = {"type": "enabled", "budget_tokens": 1024}
_EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_MESSAGE = TypeAdapter(Message)


@pytest.fixture
def client(scripted_gateway: GatewayProcess) -> Iterator[anthropic.Anthropic]:
    url = scripted_gateway.url
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def ask(
    client: anthropic.Anthropic, *messages: Any, streamed: bool = False, **fields: Any
) -> Message:
    """The message, of a stream as the client puts it together."""
    asked: Any = {"model": "chat", "max_tokens": 500, "messages": list(messages), **fields}
    if not streamed:
        message: Message = client.messages.create(**asked)
        return message
    with client.messages.stream(**asked) as stream:
        return stream.get_final_message()


def blocks(message: Message) -> list[dict[str, Any]]:
    """Without ids and signatures."""
    found = [block.to_dict() for block in message.content]
    return [
        {name: value for name, value in block.items() if name not in ("id", "signature")}
        for block in found
    ]


def result(message: Message, content: Any, **more: Any) -> Any:
    (call,) = [block for block in message.content if block.type == "tool_use"]
    return {"type": "tool_result", "tool_use_id": call.id, "content": content, **more}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_call_is_made_and_its_result_is_answered(
    client: anthropic.Anthropic, streamed: bool
) -> None:
    asked = user("one call, please")
    fields: Any = {"tools": _TOOLS, "thinking": _THINKS, "streamed": streamed}
    called = ask(client, asked, **fields)
    assert called.stop_reason == "tool_use"
    assert blocks(called) == [
        {"type": "thinking", "thinking": THOUGHT},
        {"type": "tool_use", "name": "get_weather", "input": ARGUMENTS},
    ]
    answered = {"role": "assistant", "content": [block.to_dict() for block in called.content]}
    parts = [{"type": "text", "text": "4711 degrees"}]
    answer = ask(client, asked, answered, user([result(called, parts)]), **fields)
    assert answer.stop_reason == "end_turn"
    assert blocks(answer) == [
        {"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": "It is warm."}
    ]  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_without_thinking_a_model_does_not_think(
    client: anthropic.Anthropic, streamed: bool
) -> None:
    for thinking in ({}, {"thinking": {"type": "disabled"}}):
        fields: Any = {"tools": _TOOLS, "streamed": streamed, **thinking}
        called = ask(client, user("quick call"), **fields)
        assert blocks(called) == [{"type": "tool_use", "name": "get_weather", "input": ARGUMENTS}]
        answered = {"role": "assistant", "content": [block.to_dict() for block in called.content]}
        told = user([result(called, "0815 degrees"), {"type": "text", "text": "0815?"}])
        answer = ask(client, user("quick call"), answered, told, **fields)
        assert blocks(answer) == [{"type": "text", "text": "It is cold."}]


@pytest.mark.parametrize("text", ["one call", "two calls", "nine"])
def test_a_stream_says_the_same_as_the_whole_answer(client: anthropic.Anthropic, text: str) -> None:
    whole = ask(client, user(text), tools=_TOOLS, thinking=_THINKS)
    streamed = ask(client, user(text), tools=_TOOLS, thinking=_THINKS, streamed=True)
    assert blocks(streamed) == blocks(whole)
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    signatures = [
        [block.signature for block in each.content if block.type == "thinking"]
        for each in (whole, streamed)
    ]
    assert signatures[0] == signatures[1] != [""]


@pytest.mark.parametrize("thinking", [_THINKS, {"type": "disabled"}], ids=["thinks", "does not"])
@pytest.mark.parametrize("said", ["nine", "one call", "two calls", "unknown"])
def test_every_answer_and_event_is_of_the_clients_types(
    scripted_gateway: GatewayProcess, said: str, thinking: Any
) -> None:
    body = {
        "model": "chat", "max_tokens": 500, "tools": _TOOLS, "thinking": thinking,
        "messages": [user(said)],
    }  # fmt: skip
    url = f"{scripted_gateway.url}/v1/messages"
    whole = httpx.post(url, json=body, timeout=60)
    _MESSAGE.validate_json(whole.content, strict=True)
    answer = httpx.post(url, json=body | {"stream": True}, timeout=60)
    for line in answer.text.splitlines():
        if line.startswith("data: ") and '"type":"ping"' not in line:
            _EVENTS.validate_json(line[6:], strict=True)


def test_every_event_is_one_of_the_api(scripted_gateway: GatewayProcess) -> None:
    body = {
        "model": "chat", "max_tokens": 500, "stream": True, "tools": _TOOLS, "thinking": _THINKS,
        "messages": [user("two calls")],
    }  # fmt: skip
    answer = httpx.post(f"{scripted_gateway.url}/v1/messages", json=body, timeout=60)
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in data]
    kinds = [
        event["content_block"]["type"] for event in events if event["type"] == "content_block_start"
    ]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    open_blocks: list[int] = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert open_blocks == [], "one after the other"
                open_blocks.append(event["index"])
            case "content_block_delta":
                assert [event["index"]] == open_blocks
            case "content_block_stop":
                assert [event["index"]] == open_blocks
                open_blocks = []
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]


def test_a_choice_of_tools_is_heeded(client: anthropic.Anthropic) -> None:
    fields: Any = {"tools": _TOOLS, "thinking": _THINKS}
    forced = ask(client, user("nine"), **fields, tool_choice={"type": "tool", "name": "now"})
    assert [block["name"] for block in blocks(forced) if block["type"] == "tool_use"] == ["now"]
    forced = ask(client, user("one call"), **fields, tool_choice={"type": "any"})
    assert forced.stop_reason == "tool_use"
    left = ask(client, user("two calls"), **fields, tool_choice={"type": "none"})
    assert "tool_use" not in [block["type"] for block in blocks(left)]
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    one = ask(client, user("two calls"), **fields, tool_choice=choice)
    assert [block["type"] for block in blocks(one)].count("tool_use") == 1


def test_tools_of_the_service_itself_are_left_out_and_named(
    scripted_gateway: GatewayProcess,
) -> None:
    tools = [*_TOOLS, {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]
    body = {"model": "chat", "max_tokens": 50, "tools": tools, "messages": [user("quick call")]}
    url = f"{scripted_gateway.url}/v1/messages"
    answer = httpx.post(url, json=body, timeout=60)
    assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, "tools.web_search")
    assert answer.json()["stop_reason"] in ("tool_use", "max_tokens")
    alone = httpx.post(url, json=body | {"tools": tools[-1:]}, timeout=60)
    assert alone.status_code == 200


def test_what_a_server_would_hold_is_refused_so_that_clients_send_all(
    client: anthropic.Anthropic,
) -> None:
    """A thread's next request holds only what is new: to ignore that would lose the rest."""
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        with pytest.raises(anthropic.BadRequestError) as caught:
            ask(client, user("nine"), extra_body={"thread": thread})
        body: Any = caught.value.body
        assert body["error"]["details"]["error_code"] == "thread_unsupported_request"


def test_the_clients_own_runner_of_tools(client: anthropic.Anthropic) -> None:
    asked: list[dict[str, Any]] = []

    @anthropic.beta_tool
    def get_weather(city: str, days: int) -> str:
        """Tell it."""
        asked.append({"city": city, "days": days})
        return "4711 degrees"

    runner = client.beta.messages.tool_runner(
        model="chat", max_tokens=500, tools=[get_weather], messages=[user("one call, please")]
    )
    last = runner.until_done()
    assert asked == [ARGUMENTS]
    assert [block.text for block in last.content if block.type == "text"] == ["It is warm."]


@pytest.mark.parametrize("older", [False, True], ids=["output_config", "output_format"])
def test_a_schema_holds(client: anthropic.Anthropic, older: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"hour": {"enum": [9]}},
        "required": ["hour"],
        "additionalProperties": False,
    }
    output: Any = {"type": "json_schema", "schema": schema}
    config: Any = {"output_config": {"format": output, "effort": "low"}}
    more = {"output_format": output} if older else config
    answer = ask(client, user("at once"), extra_body=more)
    (block,) = blocks(answer)
    assert json.loads(block["text"]) == {"hour": 9}


def test_tokens_are_counted_with_tools_and_thinking(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": "chat", "messages": [user("at once")]}
    alone = client.messages.count_tokens(**asked).input_tokens
    with_tools = client.messages.count_tokens(**asked, tools=_TOOLS).input_tokens
    assert with_tools > alone + 20
    thinking = client.messages.count_tokens(**asked, thinking=_THINKS).input_tokens
    assert thinking < alone, "the template closes thinking with more tokens"
    answer = client.messages.create(**asked, tools=_TOOLS, max_tokens=1)
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == with_tools


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": [{"name": "x"}]}, "tools.0.input_schema: Field required"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools.0.name: "),
        ({"tool_choice": {"type": "any"}}, "tool_choice: "),
        ({"tools": _TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "no tool x"),
        ({"extra_body": {"mcp_servers": [{"url": "x"}]}}, "mcp_servers: not supported"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens: "),
        (
            {"messages": [user([{"type": "image", "source": {}}])]},
            "messages.0.content.0.type: not supported",
        ),
        (
            {
                "messages": [
                    user("a"),
                    {"role": "assistant", "content": [
                        {"type": "tool_use", "id": "c", "name": "now", "input": {}}
                    ]},
                ]
            },
            "the results are missing",
        ),
        (
            {
                "messages": [user("a"), {"role": "assistant", "content": "It"}],
                "thinking": _THINKS,
            },
            "cannot have reasoning",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_wrong_is_told(
    client: anthropic.Anthropic, fields: dict[str, Any], words: str
) -> None:
    asked = {"messages": [user("x")], **fields}
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, *asked.pop("messages"), **asked)
    assert words in str(caught.value)


def test_lines_that_change_with_every_request_do_not_reach_the_prompt(
    client: anthropic.Anthropic,
) -> None:
    def system(number: int) -> Any:
        return [
            {"type": "text", "text": f"x-anthropic-billing-header: cch={number};"},
            {"type": "text", "text": "You are careful. " * 200},
        ]

    first = ask(client, user("at once"), system=system(1))
    again = ask(client, user("at once"), system=system(22222))
    assert again.usage.cache_read_input_tokens, "the rest is found in the cache"
    assert again.usage.input_tokens < first.usage.input_tokens + (
        first.usage.cache_read_input_tokens or 0
    )
    text = "x-anthropic-billing-header: cch=3;\n" + "You are careful. " * 200
    third = ask(client, user("at once"), system=text)
    assert third.usage.cache_read_input_tokens


def test_system_messages_and_foreign_blocks_are_taken(client: anthropic.Anthropic) -> None:
    turns: Any = [
        user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        {"role": "assistant", "content": [
            {"type": "redacted_thinking", "data": "xyz"},
            {"type": "thinking", "thinking": "Hm.", "signature": "abc"},
            {"type": "text", "text": "Yes?"},
        ]},
        user("at once"),
        {"role": "system", "content": "Be careful: at once."},
    ]  # fmt: skip
    assert blocks(ask(client, *turns)) == [{"type": "text", "text": "It is nine."}]
