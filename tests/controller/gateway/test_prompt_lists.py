"""Several prompts in one completion: one that fails does so alone, also over HTTP."""

import json
from typing import Any

import httpx
import openai
import pytest

from tests.controller.gateway.gateway_process import GatewayProcess
from tests.worker.running_agent import ENDLESS

_PATH = "/v1/completions"
_TOO_LONG = "x" * 100_000
_ASKED: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "logit_bias": ENDLESS}


def _check(error: dict[str, Any]) -> None:
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert error["type"] == "invalid_request_error"
    assert "prompt.1: " in error["message"]


def test_a_choice_says_what_became_of_its_prompt(http: httpx.Client) -> None:
    answer = http.post(_PATH, json=_ASKED | {"prompt": ["Hello", _TOO_LONG, "World"], "n": 2})
    assert answer.status_code == 200
    choices = answer.json()["choices"]
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons == ["length", "length", "error", "error", "length", "length"]
    for choice in choices[2:4]:
        assert choice["text"] == ""
        _check(choice["error"])
    assert not any("error" in choice for choice in choices[:2] + choices[4:])
    assert answer.json()["usage"]["completion_tokens"] == 16


def test_a_stream_goes_on_behind_a_choice_that_failed(http: httpx.Client) -> None:
    body = _ASKED | {"prompt": ["Hello", _TOO_LONG], "stream": True}
    with http.stream("POST", _PATH, json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    ends = {
        choice["index"]: choice
        for line in lines[:-1]
        for choice in json.loads(line)["choices"]
        if choice["finish_reason"] is not None
    }
    assert ends[0]["finish_reason"] == "length"
    assert ends[1]["finish_reason"] == "error"
    _check(ends[1]["error"])


@pytest.mark.parametrize("stream", [False, True])
def test_where_every_prompt_fails_the_request_does(http: httpx.Client, stream: bool) -> None:
    answer = http.post(_PATH, json=_ASKED | {"prompt": [_TOO_LONG, _TOO_LONG], "stream": stream})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded" and "prompt.0: " in error["message"]


def test_a_prompt_that_names_unknown_tokens_is_a_bad_request(http: httpx.Client) -> None:
    answer = http.post(_PATH, json=_ASKED | {"prompt": [[5], [10**6]]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


def test_the_official_client_shows_the_error_of_a_choice(gateway: GatewayProcess) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
        answer = client.completions.create(model="chat", prompt=["Hello", _TOO_LONG], **_ASKED)
    good, bad = answer.choices
    assert good.text and good.finish_reason == "length"
    assert str(bad.finish_reason) == "error" and bad.model_extra is not None
    _check(bad.model_extra["error"])
