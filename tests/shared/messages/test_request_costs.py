"""What is wrong many times over costs no more than what is right: others wait meanwhile."""

import json
import time
from typing import Any

import pytest

from shared.errors import InvalidRequest, RequestError
from shared.messages.request_parsing import parse_measured

_MANY = 10_000
_TIMES_AS_LONG = 8


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [[]] * _MANY},
        {"prompt": [0.5] * _MANY},
        {"prompt": [None] * _MANY},
        {"messages": [0] * _MANY},
        {"messages": [{}] * _MANY},
        {"messages": [{"role": "user", "content": [{}] * _MANY}]},
        {"prompt": "x", "logit_bias": {f"a{number}": 1 for number in range(_MANY)}},
        {"prompt": "x", "resume": {"token_ids": [-1] * _MANY}},
        {"prompt": "x", **{f"field_{number}": 1 for number in range(_MANY)}},
    ],
    ids=[
        "empty prompts", "prompts of fractions", "prompts of null", "messages of numbers",
        "empty messages", "empty parts", "keys of logit_bias", "negative tokens",
        "unknown fields",
    ],
)  # fmt: skip
def test_many_faults_cost_about_what_as_many_right_values_cost(body: dict[str, Any]) -> None:
    usual_s = min(_cost_s({"prompt": [5] * _MANY}) for _ in range(5))
    assert min(_cost_s(body) for _ in range(5)) < _TIMES_AS_LONG * usual_s


def _cost_s(body: dict[str, Any]) -> float:
    """The time on the processor: what else this machine does is not in it."""
    payload = json.dumps(body).encode()
    begun = time.thread_time()
    try:
        parse_measured(payload)
    except RequestError as error:
        assert error.message
    return time.thread_time() - begun


@pytest.mark.parametrize(
    "body",
    [
        {"x" * 1_000_000: 1},
        {"messages": [{"role": "user", "x" * 1_000_000: 1}]},
        {"prompt": "x", "logit_bias": {"x" * 1_000_000: 1}},
    ],
    ids=["field", "field of a message", "key of logit_bias"],
)
def test_an_error_about_a_long_name_is_short(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_measured(json.dumps(body).encode())
    assert len(caught.value.message) + len(caught.value.param or "") < 2000
