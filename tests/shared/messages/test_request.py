"""What a client may ask, and how it is told what is wrong."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import InvalidRequest
from shared.ids import ClientName, RequestId
from shared.messages.dispatch import default_seed
from shared.messages.request import MAX_SEED, InferenceRequest
from shared.messages.request_parsing import RequestHeader, parse_request

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
GOES_ON = {"continue_final_message": True}
BEGUN = {"messages": [*HELLO["messages"], {"role": "assistant", "content": "I am"}], **GOES_ON}
CALL = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "now"}}


def parse(**fields: Any) -> InferenceRequest:
    return parse_request(json.dumps({"prompt": "x", **fields}).encode())


def test_defaults_are_openais_and_the_clusters() -> None:
    request = parse_request(orjson.dumps(HELLO))
    given_ = request.model_dump(exclude={"messages"}, exclude_none=True)
    assert given_ == {
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "logit_bias": {}, "stop_token_ids": [], "ignore_eos": False, "n": 1, "count_only": False,
        "stream": True, "multiplex": False, "priority": "medium", "timeout_ms": 120_000,
        "debug": False, "continue_final_message": False, "parallel_tool_calls": True,
        "chat_template_kwargs": {}, "truncate": False,
    }  # fmt: skip


def test_text_parts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "What "}, {"type": "text", "text": "now?"}]
    request = parse_request(orjson.dumps({"messages": [{"role": "user", "content": parts}]}))
    assert request.messages is not None and request.messages[0].text == "What now?"


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("one", ["one"]),
        ([1, 2], [[1, 2]]),
        (["one", "two"], ["one", "two"]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_each_shape_of_a_prompt_gives_a_list_of_prompts(prompt: Any, prompts: Any) -> None:
    request = parse(prompt=prompt, n=3)
    assert request.prompts == prompts
    assert request.choices == 3 * len(prompts)


def test_messages_are_one_choice_and_no_prompts() -> None:
    request = parse_request(orjson.dumps(HELLO))
    assert (request.prompts, request.choices) == ([], 1)


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("high", "high"), ("urgent", "high"), ("medium", "medium"), ("default", "medium"),
        ("low", "low"), ("background", "low"),
    ],
)  # fmt: skip
def test_six_names_stand_for_three_priorities(name: str, level: str) -> None:
    assert parse(priority=name).level == level


@pytest.mark.parametrize(
    ("stop", "strings"), [(None, []), ("END", ["END"]), (["a", "b"], ["a", "b"])]
)
def test_stop_may_be_one_string_or_several(stop: Any, strings: list[str]) -> None:
    assert parse(stop=stop).stop_strings == strings


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0}, {"temperature": 2}, {"top_p": 0.0}, {"top_p": 1}, {"min_p": 1},
        {"presence_penalty": -2}, {"frequency_penalty": 2}, {"seed": 0}, {"seed": MAX_SEED},
        {"logprobs": 0}, {"logprobs": 20}, {"n": 128}, {"logit_bias": {"5": -100}},
        {"stop": ["a"] * 4}, {"request_id": "!" + "~" * 127}, {"session_id": "a.b/c"},
        {"response_format": {"type": "text"}}, {"tools": []}, {"tool_choice": "auto"},
        {"resume": {"token_ids": [1], "text_sent": 3}}, {"requires": {"min_memory_gb": 64}},
        {"requires": {"chip": "M4", "accelerator": "metal", "labels": {"room": "2"}}},
    ],
)  # fmt: skip
def test_the_ends_of_each_range_are_taken(fields: dict[str, Any]) -> None:
    request = parse(**fields).model_dump(exclude_unset=True)
    assert {name: request[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temprature": 1}, "temprature"),
        ({"temperature": 2.1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
        ({"seed": -1}, "seed"),
        ({"seed": MAX_SEED + 1}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "x" * 129}, "request_id"),
        ({"request_id": "two words"}, "request_id"),
        ({"session_id": "a\n"}, "session_id"),
        ({"requires": {"memory": 1}}, "requires.memory"),
        ({"requires": {"min_memory_gb": -1}}, "requires.min_memory_gb"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"resume": {"text_sent": 1}}, "resume.token_ids"),
        ({"resume": {"token_ids": [1], "text_sent": -1}}, "resume.text_sent"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt"),
        ({"prompt": None, "messages": []}, "messages"),
        ({"prompt": None, "messages": [{"role": "boss", "content": "x"}]}, "messages.0.role"),
        ({"prompt": None, "messages": [{"content": "x"}]}, "messages.0.role"),
        ({"prompt": None, "messages": [{"role": "user", "x": 5}]}, "messages.0.x"),
    ],
)  # fmt: skip
def test_a_bad_field_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}: ")
    assert (caught.value.code, caught.value.retryable) == ("invalid_request", False)


def test_a_bad_key_of_logit_bias_is_not_explained_as_a_stop_string() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(logit_bias={"stop": 1})
    assert "strings" not in caught.value.message


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, None, "exactly one of messages, prompt and input"),
        ({**HELLO, "prompt": "x"}, None, "exactly one of messages, prompt and input"),
        ({"prompt": ["a", "b"], "n": 65}, "n", "at most 128"),
        ({"prompt": "a", "n": 2, "resume": {"token_ids": [1]}}, "resume", "single choice"),
        ({"prompt": "a", "history": "kept"}, "history", "session_id and messages only"),
        ({**HELLO, **GOES_ON}, "continue_final_message", "must be the assistant's"),
        ({"prompt": "a", **GOES_ON}, "continue_final_message", "must be the assistant's"),
        ({**BEGUN, "messages": [{"role": "assistant"}]}, "continue_final_message", "with text"),
        (
            {**BEGUN, "messages": [{"role": "assistant", "content": "a", "tool_calls": [CALL]}]},
            "continue_final_message",
            "without calls",
        ),
        (
            {**BEGUN, "response_format": {"type": "json_object"}},
            "continue_final_message",
            "to a schema",
        ),
        (
            {**BEGUN, "tools": [TOOL], "tool_choice": "required"},
            "continue_final_message",
            "or a call",
        ),
        ({**BEGUN, "reasoning_effort": "low"}, "continue_final_message", "cannot have reasoning"),
        ({**BEGUN, "thinking_budget": 5}, "continue_final_message", "cannot have reasoning"),
        (
            {**BEGUN, "session_id": "s", "history": "kept"},
            "continue_final_message",
            "the whole conversation",
        ),
    ],
)
def test_fields_that_do_not_go_together_are_refused(
    body: dict[str, Any], param: str | None, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        parse_request(orjson.dumps(body))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("embed me", ["embed me"]),
        (["one", "two"], ["one", "two"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_texts_to_embed_have_one_choice_each(given: Any, texts: list[Any]) -> None:
    request = parse_request(orjson.dumps({"input": given, "dimensions": 8, "prompt_name": "query"}))
    assert request.embeds
    assert request.prompts == texts
    assert (request.choices, request.slots) == (len(texts), 0)


@pytest.mark.parametrize(("query", "queries"), [("q", ["q", "q"]), (["q", "r"], ["q", "r"])])
def test_each_text_to_score_has_its_query(query: Any, queries: list[str]) -> None:
    request = parse_request(orjson.dumps({"input": ["one", "two"], "query": query}))
    assert request.queries == queries
    assert (request.choices, request.slots) == (2, 0)
    assert request.text_bytes([]) == 6 + sum(map(len, queries))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["fine", ""]}, "input"),
        ({"input": ["fine", 5]}, "input"),
        ({"input": [[1], []]}, "input"),
        ({"input": ["text"] * 2049}, "input"),
        ({"input": "text", "n": 2}, "n"),
        ({"input": "text", "count_only": True}, "count_only"),
        ({"input": "text", "session_id": "s"}, "session_id"),
        ({"input": "text", "response_format": {"type": "json_object"}}, "response_format"),
        ({"input": "text", "dimensions": 0}, "dimensions"),
        ({"prompt": "text", "dimensions": 8}, "dimensions"),
        ({"prompt": "text", "prompt_name": "query"}, "prompt_name"),
        ({"prompt": "text", "query": "text"}, "query"),
        ({"prompt": "text", "truncate": True}, "truncate"),
        ({"input": "text", "query": ""}, "query"),
        ({"input": "text", "query": ["a", "b"]}, "query"),
        ({"input": [1, 2], "query": "text"}, "input"),
        ({"input": "text", "query": "text", "dimensions": 8}, "dimensions"),
        ({"prompt": "text", "input": "text"}, None),
    ],
)
def test_what_does_not_go_with_texts_to_embed_is_named(
    body: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(orjson.dumps(body))
    assert caught.value.param == param


def test_the_same_body_has_the_same_fingerprint_under_any_id() -> None:
    first = parse_request(b'{"prompt": "x", "seed": 1, "request_id": "a"}')
    same = parse_request(b'{"request_id": "b", "seed": 1,   "prompt": "x"}')
    other = parse_request(b'{"request_id": "a", "seed": 2, "prompt": "x"}')
    assert first.fingerprint() == same.fingerprint()
    assert first.fingerprint() != other.fingerprint()


CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "string"}}}


@pytest.mark.parametrize(
    "body",
    [
        HELLO,
        {"prompt": "x", "stop": ["b", "a"], "logit_bias": {"7": 1, "5": -1}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {
            "messages": [CALLED, {"role": "tool", "content": "noon", "tool_call_id": "c"}],
            "tools": [TOOL],
        },
        {
            "prompt": "x",
            "requires": {"labels": {"room": "2", "floor": "1"}},
            "chat_template_kwargs": {"b": 1, "a": 2},
        },
        {
            "prompt": "x",
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            },
        },
    ],
)
def test_the_order_of_keys_does_not_change_the_fingerprint(body: dict[str, Any]) -> None:
    one, other = (parse_request(orjson.dumps(each)) for each in (body, turned(body)))
    assert one.fingerprint() == other.fingerprint()
    more = parse_request(orjson.dumps(body | {"seed": 1}))
    assert more.fingerprint() != one.fingerprint()


def turned(value: Any) -> Any:
    """With the keys of all objects in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(each) for each in value] if isinstance(value, list) else value


@given(st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True), st.text(max_size=128))
def test_the_default_seed_is_the_same_for_the_same_client_and_id(client: str, request: str) -> None:
    seed = default_seed(ClientName(client), RequestId(request))
    assert 0 <= seed <= MAX_SEED
    assert seed == default_seed(ClientName(client), RequestId(request))


def test_the_default_seed_differs_between_clients_and_ids() -> None:
    seeds = {
        default_seed(ClientName(client), RequestId(request))
        for client in ("ada", "bob")
        for request in ("r1", "r2")
    }
    assert len(seeds) == 4


@pytest.mark.parametrize(
    ("payload", "request_id", "multiplex"),
    [
        (b'{"request_id": "r", "stream": false, "bad": 1}', "r", False),
        (b'{"request_id": "r", "multiplex": true, "bad": 1}', "r", True),
        (b'{"request_id": 5, "multiplex": 1}', None, False),
        (b'{"request_id": "", "multiplex": true}', None, True),
        (b'{"stream": "no"}', None, False),
        (b"[]", None, False),
        (b"{", None, False),
    ],
)
def test_an_invalid_request_still_tells_its_id_and_the_shape_of_its_answer(
    payload: bytes, request_id: str | None, multiplex: bool
) -> None:
    claims = RequestHeader.of(payload)
    assert (claims.request_id, claims.multiplex) == (request_id, multiplex)
