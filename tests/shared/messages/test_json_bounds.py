"""What JSON from outside may have, counted on its bytes: the rest is refused unparsed."""

import json
from dataclasses import asdict
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from shared.errors import DecodeError, InvalidRequest
from shared.messages import json_bounds
from shared.messages.control import RequestQuery
from shared.messages.json_bounds import BeyondBounds, Counts, check_json, decode_query
from shared.messages.request_parsing import RequestHeader, parse_measured
from tests.random_json import scrambled

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(['"', "\\", '\\"', "{[,:]}", "\u2028", '"[{', "0" * 30]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def nested(levels: int) -> Any:
    """So many objects inside one another."""
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def problem(body: Any) -> InvalidRequest | None:
    try:
        check_json(body if isinstance(body, bytes) else orjson.dumps(body))
    except InvalidRequest as error:
        return error
    return None


@given(_VALUES, st.sampled_from([None, 1]), st.booleans())
def test_what_is_counted_on_bytes_is_what_the_parsed_value_has(
    value: Any, indent: int | None, ascii_: bool
) -> None:
    payload = json.dumps(value, indent=indent, ensure_ascii=ascii_).encode(errors="surrogatepass")
    had = {"strings": 0, "containers": 0, "values": 0, "keys": 0}
    empty = 0
    pending = [value]
    while pending:
        each = pending.pop()
        had["strings"] += isinstance(each, str)
        if isinstance(each, dict | list):
            had["containers"] += 1
            had["values"] += len(each)
            empty += not each
            pending += each.values() if isinstance(each, dict) else each
        if isinstance(each, dict):
            had["keys"] += len(each)
            had["strings"] += len(each)
    counts = asdict(Counts.of(payload))
    counts["values"] -= empty  # each counts as if it had a value
    assert {name: counts[name] for name in had} == had
    if problem(payload) is None:
        outline = asdict(check_json(payload))
        del had["strings"]
        assert outline == {**had, "size_bytes": len(payload)}


def test_a_small_body_cannot_have_too_much_of_what_is_counted() -> None:
    for piece in (b"[],", b'"",', b"{},", b"1,", b'"":1,'):
        counts = Counts.of(b"[" + piece * (json_bounds._SMALL_BYTES // len(piece)))
        assert counts.excess is None, piece


@pytest.mark.parametrize(
    ("at_most", "too_much", "words"),
    [
        (nested(32), nested(33), "nested deeper than 32 levels"),
        (nested(32), b'{"a":' * 2000 + b"1" + b"}" * 2000, "nested deeper than 32 levels"),
        ([[]] * 16_383, [[]] * 16_384, "16385 objects and lists; at most 16384"),
        ([{}] * 8192, [{}] * 8193, "8193 messages, parts, calls and tools in total"),
        ([""] * 131_072, [""] * 131_073, "131073 strings"),
        ([1] * 262_144, [1] * 262_145, "262145 values"),
        (
            {str(number): 1 for number in range(4096)},
            {str(number): 1 for number in range(4097)},
            "an object has 4097 keys; at most 4096",
        ),
        ({"x" * 1024: 1}, {"x" * 1025: 1}, "a key has at most 1024 characters"),
    ],
    ids=["depth", "great depth", "containers", "objects in lists", "strings", "values", "keys",
         "length of a key"],
)  # fmt: skip
def test_each_bound_is_exact(at_most: Any, too_much: Any, words: str) -> None:
    assert problem(at_most) is None
    found = problem(too_much)
    assert found is not None and words in found.message
    assert not found.retryable and len(found.message) < 300


def test_what_stands_in_a_string_is_not_counted() -> None:
    for text in ("[" * 300_000, '{"a":' * 50_000, '\\"' * 300_000, "9" * 30 + ",", "1e400", "NaN"):
        assert problem({"prompt": text}) is None
        assert problem({"prompt": [text, {"a": text}]}) is None


@pytest.mark.parametrize(
    "number",
    ["9223372036854775808", "-9223372036854775809", "1" + "0" * 29, "9" * 5000, "1e400", "-1e999",
     "NaN", "Infinity", "-Infinity", "18446744073709551615"],
)  # fmt: skip
def test_a_number_that_not_every_parser_reads_is_refused_with_its_place(number: str) -> None:
    for body, place in (
        ('{"chat_template_kwargs": {"x": %s}}', "chat_template_kwargs.x"),
        ('{"chat_template_kwargs":{"x":[0.5,{"y":%s}]}}', "chat_template_kwargs.x.1.y"),
        ('{"requires": {"min_memory_gb": \n%s\n}}', "requires.min_memory_gb"),
    ):
        found = problem((body % number).encode())
        assert found is not None
        if len(number) < 4300:  # Python reads no longer integer
            assert found.param == place
            assert found.message.startswith(f"{place}: ")


@pytest.mark.parametrize(
    "number",
    ["9223372036854775807", "-9223372036854775808", "0.1234567890123456789012", "-0", "-0.0",
     "1e308", "5e-324", "1.5E+00000000000000000000000001", "9000000000000000000",
     "0." + "1" * 5000],
)  # fmt: skip
def test_a_number_of_64_bits_is_accepted(number: str) -> None:
    assert problem(b'{"x": %s, "y": [%s]}' % (number.encode(), number.encode())) is None


@pytest.mark.parametrize(
    "payload",
    [
        b'{"a": 1, "a": 1}',
        b'{"a":1,"a":2}',
        b'{"b": [{"c": {"a": 1, "x": "\\"", "a" : 2}}]}',
        b'{"\\u0061": 1, "a": 1}',
    ],
)
def test_a_key_twice_is_refused_by_name(payload: bytes) -> None:
    found = problem(payload)
    assert found is not None
    assert (found.param, found.message) == ("a", "a: duplicate key")


@pytest.mark.parametrize("levels", [40, 980, 1000, 1015, 1022])
@pytest.mark.parametrize("form", [b'{"a":%s,"a":1}', b'{"b":{"a":%s,"a":1}}', b'{ "a":%s, "a":1}'])
def test_what_a_key_that_stands_twice_hides_may_be_deep(levels: int, form: bytes) -> None:
    found = problem(form % (b"[" * levels + b"]" * levels))
    assert found is not None
    assert "duplicate key" in found.message or "deeper than 32" in found.message


@pytest.mark.parametrize("payload", [b'"\\ud800"', b'{"a": "\\udc00 x"}', b'"\xed\xa0\x80"'])
def test_half_a_surrogate_pair_is_refused(payload: bytes) -> None:
    assert problem(payload) is not None


def test_the_field_that_is_too_deep_is_named() -> None:
    found = problem({"prompt": "x", "chat_template_kwargs": {"x": nested(31)}})
    assert found is not None
    assert found.param == "chat_template_kwargs"


def test_a_field_that_says_which_number_it_takes_says_it_itself() -> None:
    with pytest.raises(InvalidRequest, match="seed: ") as caught:
        parse_measured(b'{"prompt": "x", "seed": %d}' % 10**30)
    assert caught.value.param == "seed"


class _Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


@given(st.integers(0, 2**64 - 1), _VALUES)
def test_what_is_accepted_is_read_alike_by_every_parser(seed: int, value: Any) -> None:
    payload = json.dumps({"a": value}).encode()
    if seed % 2:
        payload = scrambled(Random(seed), payload)
    try:
        read, _ = json_bounds.validate_json(_Anything, payload, allow_unknown=True)
    except ValueError:  # pydantic's
        return
    except InvalidRequest as error:
        assert error.message
        return
    assert read.__pydantic_extra__ == orjson.loads(payload) == json.loads(payload)
    assert orjson.loads(orjson.dumps(read.__pydantic_extra__)) == orjson.loads(payload)


def test_a_body_with_too_much_is_not_parsed_for_its_id() -> None:
    payload = b'{"request_id": "r", "multiplex": true, "prompt": [%s]}' % b",".join(
        [b"[]"] * 20_000
    )
    assert RequestHeader.of(payload) == RequestHeader()
    with pytest.raises(BeyondBounds):
        parse_measured(payload)


@pytest.mark.parametrize(
    ("payload", "param"),
    [
        (b'{"request_id": "%s"}' % (b"x" * 5000), None),
        (b"{%s}" % b",".join(b'"%d": 1' % number for number in range(200_000)), None),
        (b'{"request_id": %s}' % (b"[" * 40 + b"]" * 40), "request_id"),
        (b'{"request_id": "a", "request_id": "b"}', "request_id"),
        (b'{"request_id": "two words"}', "request_id"),
        (b"[]", None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_a_query_is_read_or_refused_with_one_error(payload: bytes, param: str | None) -> None:
    with pytest.raises(DecodeError, match=r"^not a RequestQuery: ") as caught:
        decode_query(RequestQuery, payload)
    assert caught.value.param == param
    assert len(caught.value.message) < 500
