"""Every field of a stream's messages has its type, or the message is none."""

import json
from typing import Any

import pytest

from shared.errors import DecodeError
from shared.messages.stream import decode

_ORIGIN = {"request_id": "r", "attempt": 0, "worker": "w"}
_STATUS = {**_ORIGIN, "status": "accepted"}
_CHUNK = {**_ORIGIN, "choice": 0, "index": 0, "token_ids": [1], "text": "x"}
_USAGE = {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 1}
_TIMINGS = {"queue_ms": 1, "prefill_ms": 1, "ttft_ms": 1, "decode_ms": 1}
_DONE = {**_ORIGIN, "done": True, "usage": _USAGE, "timings": _TIMINGS}
_ERROR = {"code": "queue_full", "message": "full"}


@pytest.mark.parametrize(
    "body",
    [
        {**_STATUS, "seed": "five"},
        {**_STATUS, "progress": "half"},
        {**_CHUNK, "logprobs": 5},
        {**_CHUNK, "logprobs": [5]},
        {**_CHUNK, "finish_reason": 5},
        {**_CHUNK, "reasoning": []},
        {**_CHUNK, "tool_calls": {}},
        {**_CHUNK, "error": "worker_lost"},
        {**_CHUNK, "error": {**_ERROR, "code": 5}},
        {**_DONE, "usage": {**_USAGE, "prompt_tokens": "many"}},
        {**_DONE, "timings": {**_TIMINGS, "ttft_ms": None}},
        {**_ORIGIN, "done": True, "error": {**_ERROR, "code": 5}},
        {**_ORIGIN, "done": True, "error": {**_ERROR, "message": []}},
        {**_ORIGIN, "done": True, "error": {**_ERROR, "retryable": "perhaps"}},
        {**_ORIGIN, "done": True, "error": {**_ERROR, "retry_after_ms": "soon"}},
    ],
    ids=lambda body: json.dumps(body)[len(json.dumps(_ORIGIN)) :],
)
def test_a_message_with_a_field_of_another_type_is_a_decode_error(body: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        decode(json.dumps(body).encode())
