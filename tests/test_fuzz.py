"""Ten thousand random inputs for every decoder: a message, or the one error it documents."""

import json
import struct
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from shared import codec
from shared.errors import ERROR_CODES, DecodeError, RequestError
from shared.ids import ModelId, RequestId, WorkerId
from shared.messages import stream
from shared.messages.control import (
    CONTROL_ORDERS,
    ControlReply,
    RequestQuery,
    RequestState,
    ResendQuery,
    ResendState,
)
from shared.messages.dispatch import DispatchBatch, DispatchReply, Transfer
from shared.messages.events import ControllerEvent, WorkerEvent
from shared.messages.health import ClusterHealth, ControllerHealth, WorkerHealth
from shared.messages.logs import LogRecord, RecentLogs, RecentLogsQuery
from shared.messages.request import InferenceRequest
from shared.messages.request_events import RequestEvents
from shared.messages.request_parsing import RequestHeader, parse_measured
from shared.messages.rollout import RolloutReply, RolloutState, Version
from tests.bad_values import Shape
from tests.random_json import near, random_value
from tests.worker.engine.samplings import GREEDY
from worker.link import facts, orders
from worker.link.frames import HEADER, MAX_FRAME_BYTES, decode_body, frame_length

_CASES, _TOGETHER = 10_000, 25  # an example of hypothesis costs more than 25 of ours


def _random_inputs(test: Callable[[Random], None]) -> Callable[[], None]:
    """Runs a test of one random input many times; hypothesis finds and keeps what fails."""

    @settings(max_examples=_CASES // _TOGETHER, deadline=None)
    @given(st.integers(0, 2**64 - 1))
    def run(seed: int) -> None:
        random = Random(seed)
        for _ in range(_TOGETHER):
            test(random)

    run.__name__ = test.__name__
    return run


REQUESTS: list[Any] = [
    {"prompt": "Once", "max_tokens": 5, "temperature": 0.5, "seed": 5, "stop": ["a", "b"]},
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "x"}], "name": "ada"},
        ],
        "logit_bias": {"5": -1.5},
        "response_format": {"type": "text"},
        "stream": False,
    },
    {"prompt": [[1, 2], [3]], "n": 2, "top_k": 4, "min_p": 0.1, "stop_token_ids": [7]},
    {"prompt": ["a", "b"], "request_id": "r-1", "session_id": "s", "priority": "urgent"},
    {"prompt": [1, 2], "resume": {"token_ids": [1], "text_sent": 1}, "multiplex": True},
    {"prompt": "x", "requires": {"min_memory_gb": 1.5, "chip": "M4", "labels": {"a": "b"}}},
    {"input": ["x"], "tools": [], "tool_choice": "auto", "logprobs": 3, "timeout_ms": 5},
]


@_random_inputs
def test_bytes_are_a_request_or_an_error_that_says_why_not(random: Random) -> None:
    payload = near(random, REQUESTS)
    note(repr(payload))
    try:
        request = parse_measured(payload)[0]
    except RequestError as error:
        assert error.message and error.code in ERROR_CODES and not error.retryable
    else:
        assert isinstance(request, InferenceRequest)
        assert len(request.fingerprint()) == 64
    claimed = RequestHeader.of(payload).request_id
    assert claimed is None or 0 < len(claimed) <= 128


_SUBMIT = orders.SubmitSequence(
    1, ModelId("tiny"), [{"role": "user", "content": "x"}], None, None, 5, ["a"], [7], GREEDY
)
_OUTPUT = facts.SequenceOutput(1, 0, [5, 6], "ab", "stop", [{"token_id": 5, "logprob": -0.5}])
LINK_MESSAGES: list[Any] = [
    [type(message).__name__, asdict(message)]
    for message in (
        _SUBMIT,
        orders.LoadModel(ModelId("tiny"), "/models/tiny"),
        orders.CancelSequence(1),
        orders.Stop(),
        facts.EngineStarted("CPU", "cpu", "OpenBLAS", 1, 2**35, {"mlx": "0.32.0"}),
        facts.ModelLoading(ModelId("tiny"), 0.5),
        facts.ModelFailed(ModelId("tiny"), "no config.json"),
        facts.SequenceRejected(1, "invalid_request", "no", "prompt"),
        facts.PrefillAdvanced(1, 5, 10),
        facts.StepCompleted([_OUTPUT, _OUTPUT]),
        facts.EngineMeasured(1, 2, 3, 4, 5, 6, 7.5),
        facts.SequencePreempted(3),
        orders.PrefetchPrefix(_SUBMIT),
        facts.CachedSequencesMeasured([facts.CachedSequenceMeasurements("aa", 1, 2, 3, 4, 5)]),
    )
]
_LINK_KINDS = (*get_args(orders.Order), *get_args(facts.Fact))


@_random_inputs
def test_bytes_are_a_message_of_the_engine_link_or_a_decode_error(random: Random) -> None:
    body = near(random, LINK_MESSAGES)
    note(repr(body))
    try:
        message = decode_body(body)
    except DecodeError as error:
        assert error.payload == body
    else:
        assert is_dataclass(message) and isinstance(message, _LINK_KINDS)
    header = random.randbytes(HEADER.size)
    (length,) = struct.unpack(">I", header)
    try:
        assert frame_length(header) == length <= MAX_FRAME_BYTES
    except DecodeError as error:
        assert error.payload == header and length > MAX_FRAME_BYTES


@pytest.mark.parametrize("header", [b"", b"\0", b"\0\0\0", b"\0\0\0\0\0"])
def test_a_header_of_another_size_is_a_decode_error(header: bytes) -> None:
    with pytest.raises(DecodeError):
        frame_length(header)


_ORIGIN = (RequestId("r"), 0, WorkerId("w"))
_CHOICE = stream.ChoiceOutput(0, 3, [7, 8], "ab", [{"token_id": 7}], "stop", "because", [{}])
_DONE = stream.DoneMessage(*_ORIGIN, stream.Usage(1, 0, 2), stream.Timings(1, 2, 3, 4), (_CHOICE,))
_TWO = stream.DoneMessage(
    *_ORIGIN, stream.Usage(1, 0, 2), stream.Timings(1, 2, 3, 4), (_CHOICE, _CHOICE)
)
_ERROR = stream.ErrorDetails("queue_full", "full", "n", True, 5)
_FAILED = stream.FailedMessage(*_ORIGIN, _ERROR)
_FAILED_CHOICE = stream.ChoiceOutput(1, 0, [], "", finish_reason="error", error=_ERROR)
STREAM_MESSAGES: list[Any] = [
    stream.to_dict(message)
    for message in (
        stream.StatusMessage(*_ORIGIN, "accepted", 0.5, 5),
        stream.StatusMessage(*_ORIGIN, "queued", reason="leader_change"),
        stream.ChunkMessage(*_ORIGIN, _CHOICE),
        stream.ChunkMessage(*_ORIGIN, _FAILED_CHOICE),
        _DONE,
        _TWO,
        _FAILED,
    )
]
STREAM_MESSAGES.append({"messages": STREAM_MESSAGES[:]})


@_random_inputs
def test_bytes_are_messages_of_a_stream_or_a_decode_error(random: Random) -> None:
    payload = near(random, STREAM_MESSAGES)
    note(repr(payload))
    try:
        messages = stream.decode(payload)
    except DecodeError as error:
        assert error.payload == payload
    else:
        assert all(isinstance(message, get_args(stream.StreamMessage)) for message in messages)


INTERNAL: dict[type[BaseModel], Shape] = {
    kind: Shape(kind)
    for kind in (
        *(DispatchBatch, DispatchReply, Transfer),
        *(RequestEvents, WorkerEvent, ControllerEvent),
        *(ClusterHealth, ControllerHealth, WorkerHealth),
        *(RequestQuery, RequestState, ResendQuery, ResendState, ControlReply),
        *CONTROL_ORDERS.values(),
        *(LogRecord, RecentLogs, RecentLogsQuery),
        *(RolloutReply, RolloutState, Version),
    )
}
_PLACES = [(kind, place) for kind, shape in INTERNAL.items() for place in shape.places()]


@_random_inputs
def test_bytes_are_an_internal_message_or_a_decode_error(random: Random) -> None:
    kind, place = random.choice(_PLACES)
    valid = INTERNAL[kind].with_value(place.path, random_value(random))
    payload = json.dumps(valid).encode() if random.random() < 0.5 else near(random, [valid])
    note(f"{kind.__name__}: {payload!r}")
    try:
        message = codec.decode(kind, payload)
    except DecodeError as error:
        assert error.payload == payload
        assert error.message.startswith(f"not a {kind.__name__}: ")
    else:
        assert codec.decode(kind, codec.encode(message)) == message


@pytest.mark.parametrize(
    "kind",
    INTERNAL,
)
def test_a_field_that_may_be_none_may_be_missing(kind: type[BaseModel]) -> None:
    """Encoding leaves out what is None."""
    whole = kind.model_json_schema()
    demanded = {
        name
        for schema in (whole, *whole.get("$defs", {}).values())
        for name in schema.get("required", [])
        if {"type": "null"} in schema["properties"][name].get("anyOf", [])
    }
    assert demanded == set()
