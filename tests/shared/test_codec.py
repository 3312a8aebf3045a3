"""Decoding gives a message or one `DecodeError` that holds the bytes."""

import json

import pytest

from shared.codec import decode, decode_object, encode, json_schema
from shared.errors import DecodeError
from shared.messages.control import CancelRequest, RequestQuery, RequestState
from shared.messages.events import WorkerEvent
from shared.version import PROTOCOL

CANCEL = b'{"request_id": "r", "client": "ada"}'


def test_internal_messages_carry_the_protocol_number() -> None:
    order = decode(CancelRequest, CANCEL)
    assert json.loads(encode(order))["protocol"] == PROTOCOL == 3


def test_internal_messages_ignore_fields_of_a_newer_version() -> None:
    order = decode(CancelRequest, b'{"request_id":"r","client":"ada","protocol":4,"new":[1]}')
    assert (order.request_id, order.protocol) == ("r", 4)


def test_questions_of_clients_refuse_unknown_fields() -> None:
    with pytest.raises(DecodeError) as caught:
        decode(RequestQuery, b'{"request_id": "r", "why": 1}')
    assert caught.value.param == "why"
    assert "why: unknown field" in caught.value.message


def test_fields_that_are_none_are_not_sent() -> None:
    body = decode(
        RequestState, b'{"request_id":"r","state":"accepted","controller":"c","worker":null}'
    )
    assert "worker" not in json.loads(encode(body))


@pytest.mark.parametrize(
    ("payload", "param"),
    [
        (b"", None),
        (b"nonsense", None),
        (b"[]", None),
        (b"{}", "type"),
        (b'{"type": "exploded"}', "type"),
        (b'{"type": "joined", "worker": {"id": "w"}}', "worker.boot_id"),
    ],
)
def test_a_decode_error_holds_the_bytes_and_names_the_field(
    payload: bytes, param: str | None
) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(WorkerEvent, payload)
    assert caught.value.payload == payload
    assert caught.value.param == param
    assert caught.value.code == "decode"
    assert caught.value.message.startswith("not a WorkerEvent: ")


def test_an_object_is_decoded_as_it_is() -> None:
    assert decode_object(b'{"a": [1, null]}') == {"a": [1, None]}


@pytest.mark.parametrize(
    ("payload", "words"),
    [(b"[1]", "not list"), (b"null", "not NoneType"), (b"{", "no JSON"), (b"\xff", "no JSON")],
)
def test_what_is_no_object_is_refused(payload: bytes, words: str) -> None:
    with pytest.raises(DecodeError, match=words) as caught:
        decode_object(payload)
    assert caught.value.payload == payload


def test_the_json_schema_says_what_is_required() -> None:
    assert json_schema(CancelRequest)["required"] == ["request_id", "client"]
