"""Log-probabilities of tokens that are parts of characters: the tiny model's tokens are bytes."""

import json
from typing import Any

import httpx
import pytest

from tests.controller.gateway.long_answers import CHAT

_TEXT = "✅ ö👩!"
_ASKED: dict[str, Any] = {
    "model": "chat",
    "max_tokens": 40,
    "structured_outputs": {"choice": [_TEXT]},
}
_PARTS = [len(_TEXT[:place]) for place, character in enumerate(_TEXT) for _ in character.encode()]


def test_the_bytes_of_all_tokens_are_the_text(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    asked = _ASKED | {"messages": messages, "logprobs": True, "top_logprobs": 2}
    (choice,) = http.post(CHAT, json=asked).json()["choices"]
    content = choice["logprobs"]["content"]
    assert choice["message"]["content"] == _TEXT
    assert bytes(each for entry in content for each in entry["bytes"]) == _TEXT.encode()
    for entry in content:
        for other in entry["top_logprobs"]:
            if other["token"] == entry["token"] != "\ufffd":
                assert other["bytes"] == entry["bytes"]


@pytest.mark.parametrize("stream", [False, True])
def test_offsets_count_characters(http: httpx.Client, stream: bool) -> None:
    asked = _ASKED | {"prompt": "Hi", "logprobs": 1, "stream": stream}
    answer = http.post("/v1/completions", json=asked)
    if stream:
        lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
        choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
    else:
        choices = answer.json()["choices"]
    offsets = [
        offset for each in choices if each["logprobs"] for offset in each["logprobs"]["text_offset"]
    ]
    assert "".join(each["text"] for each in choices) == _TEXT
    assert offsets[: len(_PARTS)] == _PARTS
