"""Every request that a controller accepts can be encoded and decoded by every later hop: as a
dispatch, a transfer, a frame of the engine link, a stored session, the history of the next turn."""

import json
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from controller.requests.request import TrackedRequest
from shared.codec import decode, encode
from shared.errors import RequestError
from shared.ids import BootId, ClientName, ControllerId, ModelId, RequestId, SkillName, WorkerId
from shared.messages.control import ControlReply
from shared.messages.conversation import Message
from shared.messages.dispatch import DispatchBatch, Transfer, encode_batch
from shared.messages.json_bounds import MAX_DEPTH
from shared.messages.prefixes import prefix_links
from shared.messages.request import InferenceRequest
from shared.messages.request_parsing import parse_measured
from tests.random_json import changed, near
from tests.test_fuzz import REQUESTS
from worker.link.frames import HEADER, decode_body, encode_frame
from worker.requests.active_request import ActiveRequest
from worker.requests.engine_order import submit_order
from worker.sessions.session import Session

_ADA, _CHAT, _DEMO = ClientName("ada"), SkillName("chat"), ModelId("demo")
_CONTROLLER, _MAC = ControllerId("c"), WorkerId("mac")
_CALL = {"id": "c", "type": "function", "function": {"name": "now", "arguments": '{"a": [1]}'}}
_ODD: list[Any] = [
    10**18, 2**63 - 1, -(2**63), 2**63, 10**29, 10**400, 1e308, 5e-324, -0.0, float("nan"),
    float("inf"), "\0", "\ud800", "\udc00\ud800", "\U0010ffff", "\u2028", "__proto__", "x" * 70_000,
    {"": {"": ""}}, [[[]]], {"a": [{"b": {"c": [None, True]}}]},
]  # fmt: skip
_FULL: list[dict[str, Any]] = [
    *REQUESTS[:6],
    {"input": ["x", "y"], "query": ["a", "b"], "truncate": True},
    {"input": [[1, 2]], "dimensions": 8, "prompt_name": "query"},
    {
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "reasoning": "hm", "tool_calls": [_CALL, _CALL]},
            {"role": "tool", "tool_call_id": "c", "name": "now", "content": "noon"},
        ],
        "session_id": "s", "chat_template_kwargs": {"x": {"y": [1]}},
        "tools": [{"type": "function", "function": {"name": "now", "parameters": {
            "type": "object", "properties": {"a": {"enum": [1, "x", None]}}}}}],
    },
    {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object", "enum": [{"a": 1}]}}}},
    {"prompt": "x", "structured_outputs": {"json": {"const": {"a": [1]}}}},
]  # fmt: skip


def nested(levels: int, innermost: Any = 1) -> Any:
    value = innermost
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


def odd(random: Random, body: dict[str, Any]) -> dict[str, Any]:
    """The body with a few odd values, most of them where any value may stand."""
    values = [*_ODD, nested(random.randrange(1, 60), random.choice(_ODD))]
    for _ in range(random.randint(1, 3)):
        value = random.choice(values)
        match random.randrange(4):
            case 0:
                body = {**body, "chat_template_kwargs": {"x": value}}
            case 1:
                function = {"name": "f", "parameters": {"enum": [value]}, "description": "\u2029"}
                body = {**body, "tools": [{"type": "function", "function": function}]}
            case 2:
                body = {**body, random.choice(list(body)): value}
            case _:
                body = changed(random, body)
                body = body if isinstance(body, dict) and body else {"prompt": "x"}
    return body


def go_all_the_way(payload: bytes, request: InferenceRequest) -> None:
    """Raises whatever a hop raises."""
    tracked = TrackedRequest.arrived(
        _ADA, _CHAT, ["_INBOX.x"], request, [_DEMO],
        request_id=RequestId("r"), seed=2**53 - 1, now=1.0, payload=payload,
    )  # fmt: skip
    tracked.model = _DEMO
    sent = encode_batch(_CONTROLLER, 1, [tracked.dispatch_json(2.0)])
    batch = decode(DispatchBatch, sent)
    (dispatch,) = batch.dispatches
    assert dispatch.request == request
    assert dispatch.body_fingerprint == tracked.fingerprint
    assert decode(DispatchBatch, encode(batch)) == batch
    transfer = Transfer(controller=_CONTROLLER, term=1, requests=[tracked.transfer(2.0)])
    assert decode(Transfer, encode(transfer)) == transfer
    contents = ControlReply(worker=_MAC, boot_id=BootId("b"), ok=True, contents=[dispatch])
    assert decode(ControlReply, encode(contents)) == contents

    active = ActiveRequest(dispatch, _CONTROLLER, _MAC, list(range(1, 1 + request.choices)))
    for choice in active.choices[:3]:
        order = submit_order(active, choice)
        frame = encode_frame(order)
        assert decode_body(frame[HEADER.size :]) == order
    prefix_links(_DEMO, request)
    session = Session(_ADA, "s", _DEMO, 1.0, 2.0, said=request.turns)
    assert Session.from_json(session.to_json()).said == request.turns
    told = ControlReply(worker=_MAC, ok=True, said=request.turns)
    said = decode(ControlReply, encode(told)).said or []
    assert [Message.model_validate(turn).turn for turn in said] == request.turns


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_what_is_accepted_passes_every_later_hop(seed: int) -> None:
    random = Random(seed)
    for _ in range(25):
        body = odd(random, random.choice(_FULL)) if random.random() < 0.7 else None
        payload = near(random, _FULL) if body is None else json.dumps(body).encode()
        note(repr(payload))
        try:
            request = parse_measured(payload)[0]
        except RequestError:
            continue
        go_all_the_way(payload, request)


@pytest.mark.parametrize("body", _FULL)
def test_good_requests_pass_every_hop(body: dict[str, Any]) -> None:
    payload = orjson.dumps(body)
    go_all_the_way(payload, parse_measured(payload)[0])


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"x": nested(MAX_DEPTH - 2)}},
        {"chat_template_kwargs": {"x": 2**63 - 1, "y": -(2**63)}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {
            "const": nested(MAX_DEPTH - 6)}}}]},
    ],
    ids=["depth", "integers", "depth of a tool"],
)  # fmt: skip
def test_what_is_just_within_the_bounds_passes_every_hop(fields: dict[str, Any]) -> None:
    payload = orjson.dumps({"messages": [{"role": "user", "content": "x"}], **fields})
    go_all_the_way(payload, parse_measured(payload)[0])
