"""Dispatches of which one cannot be read: it is named, and the others are read."""

from typing import Any

import orjson
import pytest

from shared.errors import DecodeError
from shared.ids import ControllerId
from shared.messages.dispatch import Dispatch, DispatchResult, encode_batch
from worker.agent.dispatch_decoding import read_batch

_OWNER = ControllerId("c1")


def _dispatch(number: int, extra: bytes = b"1") -> bytes:
    """A dispatch whose chat has a value for its template, as bytes of JSON."""
    body = b'{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"x":%s}}' % extra
    fields: dict[str, Any] = {
        "request_id": f"r{number}", "client": "local", "skill": "chat", "model": "tiny",
        "attempt": number, "inboxes": ["_INBOX.a"], "seed": 1, "elapsed_ms": 0.5,
    }  # fmt: skip
    return orjson.dumps(fields)[:-1] + b',"request":' + body + b"}"


def _batch(*dispatches: bytes) -> bytes:
    return b'{"protocol":3,"owner":"c1","term":7,"dispatches":[' + b",".join(dispatches) + b"]}"


_UNREADABLE = {
    "too deep to be decoded": b"[" * 300 + b"]" * 300,
    "very deep": b"[" * 900 + b"]" * 900,
    "half of a surrogate pair": b'"\\ud800"',
    "bytes that are no UTF-8": b'"\xff\xfe"',
}


@pytest.mark.parametrize("what", _UNREADABLE)
def test_of_several_dispatches_the_unreadable_one_is_named(what: str) -> None:
    read = read_batch(_batch(_dispatch(1), _dispatch(2, _UNREADABLE[what]), _dispatch(3)))
    assert (read.owner, read.term) == (_OWNER, 7)
    first, bad, last = read.dispatches
    assert isinstance(first, Dispatch) and isinstance(last, Dispatch)
    assert [first.request_id, last.request_id] == ["r1", "r3"]
    assert isinstance(bad, DispatchResult) and bad.refusal is not None
    assert (bad.request_id, bad.client, bad.attempt) == ("r2", "local", 2)
    assert bad.refusal.code == "invalid_request"


def test_each_depth_is_read_or_refused_alone() -> None:
    """Whatever the limits of the decoders are."""
    for depth in range(150, 260):
        nested = b"[" * depth + b"]" * depth
        read = read_batch(encode_batch(_OWNER, 7, [_dispatch(1), _dispatch(2, nested)]))
        assert isinstance(read.dispatches[0], Dispatch)
        assert len(read.dispatches) == 2


@pytest.mark.parametrize("part", [b"7", b"null", b"[]", b"{}", b'{"request_id":7,"attempt":"x"}'])
def test_what_is_no_dispatch_at_all_is_refused_in_its_place(part: bytes) -> None:
    read = read_batch(_batch(_dispatch(1), part, _dispatch(3)))
    assert [type(each) for each in read.dispatches] == [Dispatch, DispatchResult, Dispatch]


def test_the_values_of_the_others_stay_what_they_are() -> None:
    values = [
        b"123456789012345678901234567890",
        b"0.1",
        b"1e22",
        b'"\xc3\xa9\\u0000"',
        b"[null,true]",
    ]
    bad = _dispatch(9, _UNREADABLE["too deep to be decoded"])
    read = read_batch(_batch(*(_dispatch(n, v) for n, v in enumerate(values)), bad))
    found = [
        d.request.chat_template_kwargs["x"] for d in read.dispatches if isinstance(d, Dispatch)
    ]
    assert found == [int(values[0]), 0.1, 1e22, "\u00e9\x00", [None, True]]


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"[]", b'{"owner":"c1"}', b'{"owner":"c1","dispatches":7}', b"[" * 10**5, b"\xff"],
)
def test_what_is_no_batch_is_said_so(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        read_batch(payload)
