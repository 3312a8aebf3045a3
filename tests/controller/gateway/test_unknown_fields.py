"""What a gateway does not know of a request it ignores, and says so; or refuses, where it is told
to. What it knows and cannot do is refused either way."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process
from tests.controller.gateway.long_answers import CHAT
from tests.models import CONTEXT_TOKENS
from tests.processes import ClusterProcess
from tests.worker.running_agent import ENDLESS

_HEADER = "x-ignored-fields"
_MESSAGES = "/v1/messages"
_HELLO = {"role": "user", "content": "Hello!"}
_ASKED: dict[str, Any] = {"model": "chat", "max_tokens": 2, "messages": [_HELLO]}
_TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


def _with(**fields: Any) -> dict[str, Any]:
    return _ASKED | fields


_UNKNOWN = [
    (CHAT, _with(frobnicate=1), "frobnicate"),
    (CHAT, _with(frobnicate=None), "frobnicate"),
    (CHAT, _with(stream_options={"x": 1}), "stream_options.x"),
    (CHAT, _with(messages=[_HELLO | {"tokens": 5}]), "messages.*.tokens"),
    (
        CHAT,
        _with(
            messages=[_HELLO | {"content": [{"type": "text", "text": "a", "cache_control": {}}]}]
        ),
        "messages.*.content.*.cache_control",
    ),
    (CHAT, _with(tools=[_TOOL | {"x": 1}]), "tools.*.x"),
    (
        CHAT,
        _with(tools=[{**_TOOL, "function": {**_TOOL["function"], "x": 1}}]),  # type: ignore[dict-item]
        "tools.*.function.x",
    ),
    (CHAT, _with(response_format={"type": "text", "x": 1}), "response_format.x"),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 2, "x": {"y": 1}}, "x"),
    (_MESSAGES, _with(x=1), "x"),
    (_MESSAGES, _with(metadata={"x": 1}), "metadata.x"),
    (
        _MESSAGES,
        _with(messages=[_HELLO | {"content": [{"type": "text", "text": "a", "x": 1}]}]),
        "messages.*.content.*.x",
    ),
]
_PLACES = [place for *_, place in _UNKNOWN]
_IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.fixture(scope="module")
def strict(tiny_cluster: ClusterProcess) -> Iterator[GatewayProcess]:
    settings = {"CLUSTER__GATEWAY__UNKNOWN_FIELDS": "refuse"}
    with gateway_process(tiny_cluster.url, settings=settings) as process:
        yield process


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "place"), _UNKNOWN, ids=_PLACES)
def test_an_unknown_field_is_ignored_and_named(
    http: httpx.Client, path: str, body: dict[str, Any], place: str, stream: bool
) -> None:
    answer = http.post(path, json=body | {"stream": stream})
    assert (answer.status_code, answer.headers[_HEADER]) == (200, place)


@pytest.mark.parametrize(("path", "body", "place"), _UNKNOWN, ids=_PLACES)
def test_a_strict_gateway_refuses_it(
    strict: GatewayProcess, path: str, body: dict[str, Any], place: str
) -> None:
    answer = httpx.post(f"{strict.url}{path}", json=body)
    assert answer.status_code == 400 and _HEADER not in answer.headers
    message = answer.json()["error"]["message"]
    if ".content." in place:  # of a field with several shapes only the shapes are told
        assert message.startswith("messages.0.content: ")
    else:
        assert message == f"{place.replace('*', '0')}: unknown field"


def test_what_is_known_is_named_nowhere(http: httpx.Client) -> None:
    answer = http.post(CHAT, json=_with(store=True, metadata={"a": "b"}, tools=[_TOOL]))
    assert answer.status_code == 200 and _HEADER not in answer.headers


def test_an_error_names_ignored_fields_too(http: httpx.Client) -> None:
    answer = http.post(CHAT, json=_with(x=1, functions=[{"name": "now"}]))
    assert (answer.status_code, answer.headers[_HEADER]) == (400, "x")


def test_names_are_made_fit_for_a_header(http: httpx.Client) -> None:
    names = ["a\r\nx-evil: 1", "é", "b,c", "d" * 1000, *(f"field_{n}" for n in range(500))]
    answer = http.post(CHAT, json=_with(**dict.fromkeys(names, 1)))
    value = answer.headers[_HEADER]
    assert answer.status_code == 200 and "x-evil" not in answer.headers
    assert len(value) <= 1024 and value.endswith(", ...")
    assert {"a??x-evil:?1", "?", "b?c"} & set(value.split(", "))


def test_ignored_fields_are_counted(http: httpx.Client) -> None:
    def counted() -> float:
        lines = http.get("/metrics").text.splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("mlx_gateway_ignored_fields_total")
        )

    before = counted()
    http.post(CHAT, json=_with(x=1, y=[{"z": 1}]))
    assert counted() == before + 2


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, _with(messages=[_HELLO | {"content": [_IMAGE]}]), "messages.0.content.0.type"),
        (
            CHAT,
            _with(messages=[_HELLO | {"content": [{"type": "hologram"}]}]),
            "messages.0.content",
        ),
        (CHAT, _with(modalities=["text", "audio"], audio={"voice": "x"}), "audio"),
        (CHAT, _with(temperature=9), "temperature"),
    ],
)
def test_what_changes_the_meaning_is_refused(
    http: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)


# Values that mean that a field is not set.


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": -1, "stop": "Hello", "logit_bias": {"2": 100}},
        {"max_tokens": None, "max_completion_tokens": -1, "logit_bias": {"2": 100}},
        {"top_k": -1},
        {"seed": -1},
        {"stop": ""},
        *(
            {name: None}
            for name in (
                "temperature", "top_p", "top_k", "min_p", "stop", "seed", "n", "stream",
                "stream_options", "tools", "tool_choice", "parallel_tool_calls", "user",
                "response_format", "reasoning_effort", "logprobs", "top_logprobs", "logit_bias",
                "presence_penalty", "frequency_penalty", "chat_template_kwargs", "metadata",
            )
        ),
    ],
    ids=str,
)  # fmt: skip
def test_none_can_be_said_in_several_ways(http: httpx.Client, fields: dict[str, Any]) -> None:
    assert http.post(CHAT, json=_with(**fields)).status_code == 200


@pytest.mark.parametrize("fields", [{"max_tokens": -2}, {"top_k": -2}, {"stop": [""]}], ids=str)
def test_others_are_wrong(http: httpx.Client, fields: dict[str, Any]) -> None:
    answer = http.post(CHAT, json=_with(**fields))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(fields)))


def test_a_seed_may_have_64_bits(http: httpx.Client) -> None:
    def said(seed: int) -> str:
        answer = http.post(CHAT, json=_with(seed=seed, max_tokens=12))
        assert answer.status_code == 200
        return str(answer.json()["choices"][0]["message"]["content"])

    for seed in (-(2**63), -2, 2**63 - 1, 2**53):
        assert said(seed) == said(seed)
    assert said(2**62 + 1) != said(2**62 + 2)
    for seed in (2**63, -(2**63) - 1):
        assert http.post(CHAT, json=_with(seed=seed)).status_code == 400


@pytest.mark.parametrize(("path", "name"), [(CHAT, "stop"), (_MESSAGES, "stop_sequences")])
def test_sixteen_stop_strings_may_be_given(http: httpx.Client, path: str, name: str) -> None:
    strings = [f"zz{number}" for number in range(17)]
    assert http.post(path, json=_with(**{name: strings[:16]})).status_code == 200
    assert http.post(path, json=_with(**{name: strings})).status_code == 400


def test_more_tokens_than_the_context_leaves_end_with_length(http: httpx.Client) -> None:
    asked = {"max_tokens": 32_000, "messages": [{"role": "user", "content": "x" * 900}]}
    answer = http.post(CHAT, json=_with(**asked, logit_bias=ENDLESS)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == CONTEXT_TOKENS
    assert http.post(_MESSAGES, json=_with(**asked)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/responses"])
@pytest.mark.parametrize("name", ["a\r\nx-evil: 1", "\x1f", "é"])
def test_so_are_those_of_tools_that_are_left_out(http: httpx.Client, path: str, name: str) -> None:
    asked: dict[str, Any] = {"model": "chat", "tools": [{"type": name}]}
    asked |= {"input": "Hi", "max_output_tokens": 2} if "resp" in path else {"messages": [_HELLO]}
    asked |= {"max_tokens": 2} if path == "/v1/messages" else {}
    answer = http.post(path, json=asked)
    assert answer.status_code == 200 and "x-evil" not in answer.headers
    assert re.fullmatch(r"tools\.[a-z?:1-]+", answer.headers[_HEADER])
