"""Tools and reasoning, through the official `openai` client."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from pydantic import BaseModel

from tests.controller.gateway.gateway_process import GatewayProcess
from tests.controller.gateway.scripts import ARGUMENTS, THOUGHT

_WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
_TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "parameters": _WEATHER}},
    {"type": "function", "function": {"name": "now", "description": "the time of day"}},
]

_USAGE: Any = {"include_usage": True}


@pytest.fixture
def client(scripted_gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    url = f"{scripted_gateway.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def ask(client: openai.OpenAI, *messages: Any, streamed: bool = False, **fields: Any) -> Any:
    """The completion, of a stream as the client puts it together."""
    asked: Any = {"model": "chat", "messages": list(messages), "temperature": 0, **fields}
    if not streamed:
        return client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked, stream_options=_USAGE) as stream:
        return stream.get_final_completion()


def deltas(client: openai.OpenAI, text: str, **fields: Any) -> list[dict[str, Any]]:
    """What each chunk of the one choice has."""
    stream = client.chat.completions.create(
        model="chat", messages=[user(text)], temperature=0, stream=True, **fields
    )
    return [chunk.choices[0].delta.to_dict() for chunk in stream]


def said(completion: ChatCompletion) -> dict[str, Any]:
    """What the message says, without the ids that every request has of its own."""
    (choice,) = completion.choices
    calls = choice.message.tool_calls or []
    return {
        "content": choice.message.content or None,
        "reasoning": thought(choice.message),
        "calls": [(call.type, call.function.name, call.function.arguments) for call in calls],  # type: ignore[union-attr]
        "finish_reason": choice.finish_reason,
    }


def thought(message: ChatCompletionMessage) -> Any:
    return (message.model_extra or {}).get("reasoning_content")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_call_is_made_and_its_result_is_answered(client: openai.OpenAI, streamed: bool) -> None:
    asked = user("one call, please")
    called = ask(client, asked, tools=_TOOLS, streamed=streamed)
    (choice,) = called.choices
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "get_weather")
    assert json.loads(call.function.arguments) == ARGUMENTS
    result = {"role": "tool", "tool_call_id": call.id, "content": "4711 degrees"}
    answer = ask(client, asked, choice.message, result, tools=_TOOLS, streamed=streamed)
    assert said(answer) == {
        "content": "It is warm.", "reasoning": THOUGHT, "calls": [], "finish_reason": "stop"
    }  # fmt: skip


@pytest.mark.parametrize("text", ["one call", "two calls", "nine"])
def test_a_stream_says_the_same_as_the_whole_answer(client: openai.OpenAI, text: str) -> None:
    whole = ask(client, user(text), tools=_TOOLS)
    streamed = ask(client, user(text), tools=_TOOLS, streamed=True)
    assert said(streamed) == said(whole)
    counts = [each.usage.to_dict() for each in (whole, streamed)]
    for each in counts:
        each.pop("prompt_tokens_details")  # how much of it was cached by then
    assert counts[0] == counts[1]
    assert 5 < counts[0]["completion_tokens_details"]["reasoning_tokens"] < 20


def test_an_answer_that_only_calls_has_no_content(client: openai.OpenAI) -> None:
    (choice,) = ask(client, user("one call"), tools=_TOOLS).choices
    assert choice.message.content is None
    assert set(choice.message.tool_calls[0].to_dict()) == {"id", "type", "function"}


def test_several_calls_come_in_one_answer_each_with_an_id(client: openai.OpenAI) -> None:
    (choice,) = ask(client, user("two calls"), tools=_TOOLS).choices
    assert choice.message.content == "Let me see."
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather", "now"]
    assert len({call.id for call in choice.message.tool_calls}) == 2


def test_one_call_comes_where_they_may_not_be_parallel(client: openai.OpenAI) -> None:
    answer = ask(client, user("two calls"), tools=_TOOLS, parallel_tool_calls=False)
    assert [name for _, name, _ in said(answer)["calls"]] == ["get_weather"]


def test_every_choice_has_calls_of_its_own(client: openai.OpenAI) -> None:
    answer = ask(client, user("two calls"), tools=_TOOLS, n=2)
    calls = [call for choice in answer.choices for call in choice.message.tool_calls]
    assert len({call.id for call in calls}) == 4


def test_no_tool_is_called_where_the_choice_is_none(client: openai.OpenAI) -> None:
    answer = ask(client, user("one call"), tools=_TOOLS, tool_choice="none")
    assert said(answer)["calls"] == [] and answer.choices[0].finish_reason == "stop"


def test_the_pieces_of_a_call_come_as_openais_do(client: openai.OpenAI) -> None:
    came = deltas(client, "two calls", tools=_TOOLS)
    assert all(len(delta.get("tool_calls", [None])) == 1 for delta in came)
    pieces = [delta["tool_calls"][0] for delta in came if "tool_calls" in delta]
    for index, name in enumerate(["get_weather", "now"]):
        first, *rest = [piece for piece in pieces if piece["index"] == index]
        assert first["id"] and first["type"] == "function"
        assert first["function"] == {"name": name, "arguments": ""}
        assert all(set(piece) == {"index", "function"} for piece in rest)
        assert all(set(piece["function"]) == {"arguments"} for piece in rest)
    assert [piece["index"] for piece in pieces] == sorted(piece["index"] for piece in pieces)


def test_reasoning_comes_before_the_content_and_apart_from_it(client: openai.OpenAI) -> None:
    opening, *came, closing = deltas(client, "nine")
    assert (opening["role"], closing) == ("assistant", {})
    assert all(len(delta) == 1 for delta in came)
    channels = [next(iter(delta)) for delta in came]
    count = channels.count("reasoning_content")
    assert count > 5 and set(channels[:count]) == {"reasoning_content"}
    assert "".join(delta["reasoning_content"] for delta in came[:count]) == THOUGHT
    assert "".join(delta["content"] for delta in came[count:]) == "It is nine."


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "none"},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
    ],
)
def test_thinking_can_be_turned_off(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    answer = ask(client, user("at once"), **fields)
    assert said(answer)["content"] == "It is nine."
    assert "reasoning_content" not in answer.choices[0].message.to_dict()
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_thinking_ends_at_its_budget(client: openai.OpenAI) -> None:
    answer = ask(client, user("nine"), extra_body={"thinking_budget": 3})
    short = said(answer)["reasoning"]
    assert short and THOUGHT.startswith(short) and len(short) < len(THOUGHT)


@pytest.mark.parametrize(
    "turn",
    [
        {"reasoning": THOUGHT},
        {"reasoning_details": [{"type": "reasoning.text", "text": THOUGHT, "index": 0}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": THOUGHT}]},
        {
            "content": [
                {"type": "thinking", "thinking": THOUGHT, "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "It is nine.", "cache_control": {"type": "ephemeral"}},
            ]
        },
        {
            "content": [
                {"type": "reasoning", "text": THOUGHT},
                {"type": "text", "text": "It is nine."},
            ]
        },
    ],
    ids=lambda turn: next(iter(turn)),
)  # fmt: skip
def test_what_was_thought_may_be_sent_back_as_each_client_keeps_it(
    client: openai.OpenAI, turn: dict[str, Any]
) -> None:
    answered = {"role": "assistant", "content": "It is nine."}
    plain, usual, kept = (
        ask(client, user("x"), each, user("nine"), max_tokens=1).usage.prompt_tokens
        for each in (answered, {**answered, "reasoning_content": THOUGHT}, {**answered, **turn})
    )
    assert plain < usual == kept


def test_log_probabilities_are_those_of_the_content(client: openai.OpenAI) -> None:
    whole = ask(client, user("nine"), logprobs=True, top_logprobs=2).choices[0]
    entries = [entry.to_dict() for entry in whole.logprobs.content]
    assert "".join(str(entry["token"]) for entry in entries).strip() == "It is nine."
    assert all(set(e) == {"token", "bytes", "logprob", "top_logprobs"} for e in entries)
    stream = client.chat.completions.create(
        model="chat", messages=[user("nine")], temperature=0, stream=True, logprobs=True,
        top_logprobs=2,
    )  # fmt: skip
    came = [chunk.choices[0] for chunk in stream]
    assert [
        entry.to_dict() for each in came if each.logprobs for entry in each.logprobs.content or []
    ] == entries
    assert not any(each.logprobs for each in came if "reasoning_content" in each.delta.to_dict())


def test_arguments_are_parsed_by_the_client_and_may_be_sent_back(client: openai.OpenAI) -> None:
    class GetWeather(BaseModel):
        city: str
        days: int

    tools = [openai.pydantic_function_tool(GetWeather, name="get_weather")]
    asked = user("one call")
    parsed = client.chat.completions.parse(model="chat", messages=[asked], tools=tools)
    message = parsed.choices[0].message
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.function.parsed_arguments == GetWeather.model_validate(ARGUMENTS)
    result = {"role": "tool", "tool_call_id": call.id, "content": "4711 degrees"}
    answer = ask(client, asked, message, result, tools=tools)
    assert said(answer)["content"] == "It is warm."
