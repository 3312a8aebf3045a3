"""What a client receives, on the wire and back."""

import json
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import DecodeError, StreamFailed
from shared.ids import RequestId, WorkerId
from shared.messages.stream import (
    ChoiceOutput,
    ChunkMessage,
    DoneMessage,
    ErrorDetails,
    FailedMessage,
    FinishReason,
    StatusMessage,
    StatusName,
    StreamMessage,
    Timings,
    Usage,
    decode,
    encode,
    encode_multiplexed,
    to_dict,
)

counts = st.integers(0, 2**31)
floats = st.floats(0, 1e9)
ids = st.from_regex(r"[!-~]{1,20}", fullmatch=True).map(RequestId)
workers = st.none() | st.from_regex(r"[a-z0-9-]{1,9}", fullmatch=True).map(WorkerId)
entries = st.fixed_dictionaries({"token_id": counts, "token": st.text(), "logprob": floats})
errors = st.builds(
    ErrorDetails,
    code=st.text(),
    message=st.text(),
    param=st.none() | st.text(),
    retryable=st.booleans(),
    retry_after_ms=st.none() | counts,
)
outputs = st.builds(
    ChoiceOutput,
    choice=st.integers(0, 127),
    index=counts,
    token_ids=st.lists(counts, max_size=4),
    text=st.text(),
    logprobs=st.none() | st.lists(entries, max_size=2),
    finish_reason=st.none() | st.sampled_from(get_args(FinishReason)),
    reasoning=st.none() | st.text(),
    tool_calls=st.none() | st.lists(st.just({"id": "1"}), max_size=2),
    error=st.none() | errors,
)
messages: st.SearchStrategy[StreamMessage] = st.one_of(
    st.builds(
        StatusMessage, ids, counts, workers, st.sampled_from(get_args(StatusName)),
        st.none() | st.floats(0, 1), st.none() | counts, st.none() | st.text(),
    ),
    st.builds(ChunkMessage, ids, counts, workers, outputs),
    st.builds(
        DoneMessage, ids, counts, workers,
        st.builds(Usage, counts, counts, counts),
        st.builds(Timings, floats, floats, floats, floats),
        st.lists(outputs, max_size=3).map(tuple),
    ),
    st.builds(FailedMessage, st.none() | ids, counts, workers, errors),
)  # fmt: skip


@given(messages)
def test_a_message_comes_back_as_it_was_sent(message: StreamMessage) -> None:
    assert decode(encode(message)) == [message]


@given(st.lists(messages, max_size=4))
def test_multiplexed_messages_come_back_in_their_order(batch: list[StreamMessage]) -> None:
    assert decode(encode_multiplexed(batch)) == batch


@given(messages)
def test_every_message_names_its_request_attempt_and_worker(message: StreamMessage) -> None:
    body = to_dict(message)
    assert {"request_id", "attempt", "worker"} <= set(body)
    assert body.get("done", False) is isinstance(message, DoneMessage | FailedMessage)


ORIGIN = {"request_id": "r", "attempt": 0, "worker": "w"}
STATUS = {**ORIGIN, "status": "accepted"}
CHUNK = {**ORIGIN, "choice": 0, "index": 0, "token_ids": [1], "text": "x"}
USAGE = {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 1}
TIMINGS = {"queue_ms": 1, "prefill_ms": 1, "ttft_ms": 1, "decode_ms": 1}
DONE = {**ORIGIN, "done": True, "usage": USAGE, "timings": TIMINGS}
ERROR = {"code": "queue_full", "message": "full"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"request_id": "r"},
        {**CHUNK, "status": "sleeping"},
        {**CHUNK, "attempt": "x"},
        {key: value for key, value in CHUNK.items() if key != "text"},
        {"request_id": "r", "attempt": 0, "worker": None, "done": True},
        {"request_id": "r", "attempt": 0, "worker": None, "done": True, "error": "bad"},
        {"request_id": "r", "attempt": 0, "worker": None, "done": True, "usage": {}},
        {"messages": [CHUNK, {}]},
        {"messages": 5},
        {**CHUNK, "token_ids": 5},
        {**CHUNK, "token_ids": "12"},
        {**CHUNK, "text": None},
        {**CHUNK, "text": 5},
        {**CHUNK, "worker": 5},
        {**CHUNK, "request_id": []},
        {**STATUS, "seed": "five"},
        {**STATUS, "progress": "half"},
        {**CHUNK, "logprobs": 5},
        {**CHUNK, "logprobs": [5]},
        {**CHUNK, "finish_reason": 5},
        {**CHUNK, "reasoning": []},
        {**CHUNK, "tool_calls": {}},
        {**CHUNK, "error": "worker_lost"},
        {**CHUNK, "error": {**ERROR, "code": 5}},
        {**DONE, "usage": {**USAGE, "prompt_tokens": "many"}},
        {**DONE, "timings": {**TIMINGS, "ttft_ms": None}},
        {**ORIGIN, "done": True, "error": {**ERROR, "code": 5}},
        {**ORIGIN, "done": True, "error": {**ERROR, "message": []}},
        {**ORIGIN, "done": True, "error": {**ERROR, "retryable": "perhaps"}},
        {**ORIGIN, "done": True, "error": {**ERROR, "retry_after_ms": "soon"}},
    ],
    ids=json.dumps,
)
def test_what_lacks_a_field_or_has_one_of_another_type_is_a_decode_error(
    body: dict[str, Any],
) -> None:
    payload = orjson.dumps(body)
    with pytest.raises(DecodeError, match="no message of a stream") as caught:
        decode(payload)
    assert caught.value.payload == payload


def test_the_error_of_a_stream_becomes_an_exception_with_its_fields() -> None:
    error = ErrorDetails("code_of_a_newer_version", "so it is", "prompt", True, 250).to_exception()
    assert isinstance(error, StreamFailed)
    assert (error.code, error.message) == ("code_of_a_newer_version", "so it is")
    assert (error.param, error.retryable, error.retry_after_ms) == ("prompt", True, 250)
