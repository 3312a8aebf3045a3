"""What a client receives, on the wire and back."""

from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import DecodeError, StreamFailed
from shared.ids import RequestId, WorkerId
from shared.messages.stream import (
    ChoiceOutput,
    Chunk,
    Done,
    Failed,
    FinishReason,
    Status,
    StatusName,
    StreamError,
    StreamMessage,
    Timings,
    Usage,
    decode,
    encode,
    encode_multiplexed,
    to_dict,
)

USAGE = Usage(10, 4, 2)
TIMINGS = Timings(0.5, 1.5, 2.5, 3.5)

counts = st.integers(0, 2**31)
floats = st.floats(0, 1e9)
ids = st.from_regex(r"[!-~]{1,20}", fullmatch=True).map(RequestId)
workers = st.none() | st.from_regex(r"[a-z0-9-]{1,9}", fullmatch=True).map(WorkerId)
entries = st.fixed_dictionaries({"token_id": counts, "token": st.text(), "logprob": floats})
errors = st.builds(
    StreamError,
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
        Status, ids, counts, workers, st.sampled_from(get_args(StatusName)),
        st.none() | st.floats(0, 1), st.none() | counts,
    ),
    st.builds(Chunk, ids, counts, workers, outputs),
    st.builds(
        Done, ids, counts, workers,
        st.builds(Usage, counts, counts, counts),
        st.builds(Timings, floats, floats, floats, floats),
        st.lists(outputs, max_size=3).map(tuple),
    ),
    st.builds(Failed, st.none() | ids, counts, workers, errors),
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
    assert body.get("done", False) is isinstance(message, Done | Failed)


@given(st.binary())
def test_any_bytes_are_messages_or_a_decode_error(payload: bytes) -> None:
    try:
        decode(payload)
    except DecodeError as error:
        assert error.payload == payload


KEYS = st.sampled_from(
    ["request_id", "attempt", "worker", "status", "done", "error", "usage", "timings",
     "choice", "index", "token_ids", "text", "choices", "messages", "seed"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text("1a"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES))
def test_any_json_is_messages_or_a_decode_error(body: dict[str, Any]) -> None:
    try:
        decode(orjson.dumps(body))
    except DecodeError as error:
        assert error.message.startswith("no message of a stream")


CHUNK = {"request_id": "r", "attempt": 0, "worker": "w", "choice": 0, "index": 0,
         "token_ids": [1], "text": "x"}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": 5},
        {"token_ids": "12"},
        {"text": None},
        {"text": 5},
        {"worker": 5},
        {"request_id": []},
    ],
)
def test_a_field_of_another_type_is_a_decode_error(change: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        decode(orjson.dumps({**CHUNK, **change}))


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
    ],
)
def test_what_lacks_a_field_is_a_decode_error(body: dict[str, Any]) -> None:
    payload = orjson.dumps(body)
    with pytest.raises(DecodeError, match="no message of a stream") as caught:
        decode(payload)
    assert caught.value.payload == payload


def test_a_chunk_leaves_out_what_it_does_not_know() -> None:
    output = ChoiceOutput(0, 3, [7], "x")
    assert to_dict(Chunk(RequestId("r"), 0, WorkerId("w"), output)) == {
        "request_id": "r", "attempt": 0, "worker": "w",
        "choice": 0, "index": 3, "token_ids": [7], "text": "x",
    }  # fmt: skip


def test_the_last_chunk_of_a_single_choice_stands_in_the_terminal() -> None:
    output = ChoiceOutput(0, 3, [7], "x", finish_reason="stop")
    body = to_dict(Done(RequestId("r"), 0, WorkerId("w"), USAGE, TIMINGS, (output,)))
    assert (body["done"], body["text"], body["finish_reason"]) == (True, "x", "stop")
    assert body["usage"] == {"prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 2}
    assert body["timings"] == {
        "queue_ms": 0.5, "prefill_ms": 1.5, "ttft_ms": 2.5, "decode_ms": 3.5,
    }  # fmt: skip
    assert "choices" not in body


def test_a_choice_that_failed_alone_says_why_and_ends_nothing() -> None:
    error = StreamError("worker_lost", "w1 is gone", None, True)
    output = ChoiceOutput(1, 3, [], "", finish_reason="error", error=error)
    body = to_dict(Chunk(RequestId("r"), 0, None, output))
    assert "done" not in body and body["finish_reason"] == "error"
    assert body["error"] == {"code": "worker_lost", "message": "w1 is gone", "retryable": True}


def test_several_choices_stand_in_a_list() -> None:
    both = tuple(ChoiceOutput(choice, 0, [choice], "x") for choice in (0, 1))
    body = to_dict(Done(RequestId("r"), 0, None, USAGE, TIMINGS, both))
    assert [choice["token_ids"] for choice in body["choices"]] == [[0], [1]]
    assert "text" not in body


def test_the_error_of_a_stream_becomes_an_exception_with_its_fields() -> None:
    error = StreamError("code_of_a_newer_version", "so it is", "prompt", True, 250).to_exception()
    assert isinstance(error, StreamFailed)
    assert (error.code, error.message) == ("code_of_a_newer_version", "so it is")
    assert (error.param, error.retryable, error.retry_after_ms) == ("prompt", True, 250)
