"""Random bytes and random JSON near valid messages; the same seed gives the same."""

import json
from random import Random
from typing import Any

_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**53, 2**63, -(2**63), 0.5, -0.0, 1e308, 5e-324,
    "", "x", "5", "é", "\0", "\U0001f600", "x" * 300, [], {}, [[]], [{}], [None], [0], ["x"],
    {"": 1}, {"5": 1}, {"x": None}, {"type": "text", "text": "x"}, {"role": "user"},
]  # fmt: skip
_PIECES = [
    b'"', b"\\", b"\\u", b"\\ud800", b"\xff", b"\x00", b"\xed\xa0\x80", b"{", b"}", b"[", b"]",
    b",", b":", b"null", b"true", b"1e5", b"1e999", b"-", b".", b"{}", b"[]", b'"x"', b"\r\n",
    b" ", b"\xef\xbb\xbf", b"/**/", b"'",
]  # fmt: skip


def random_value(random: Random, depth: int = 2) -> Any:
    """Any JSON value, usually a plain one."""
    if depth == 0 or random.random() < 0.8:
        return random.choice(_VALUES)
    inner = [random_value(random, depth - 1) for _ in range(random.randrange(4))]
    return inner if random.random() < 0.5 else {str(n): value for n, value in enumerate(inner)}


def changed(random: Random, value: Any) -> Any:
    """The same with one value somewhere inside replaced, dropped, or put in."""
    if not isinstance(value, dict | list) or not value or random.random() < 0.15:
        return random_value(random)
    if isinstance(value, dict):
        key = random.choice(list(value))
        rest = {name: inner for name, inner in value.items() if name != key}
        match random.randrange(8):
            case 0:
                return rest
            case 1:
                return {**value, random.choice(["", "x", key + "s"]): random_value(random)}
            case _:
                return {**value, key: changed(random, value[key])}
    place = random.randrange(len(value))
    match random.randrange(8):
        case 0:
            return value[:place] + value[place + 1 :]
        case 1:
            return [*value, random_value(random)]
        case _:
            return [*value[:place], changed(random, value[place]), *value[place + 1 :]]


def scrambled(random: Random, payload: bytes) -> bytes:
    """The same bytes with a few changes: flipped, cut, repeated, put in."""
    data = bytearray(payload)
    for _ in range(random.randint(1, 4)):
        place = random.randrange(len(data) + 1)
        end = min(len(data), place + random.randint(1, 8))
        match random.randrange(5):
            case 0:
                data[place:end] = bytes([random.randrange(256)])
            case 1:
                del data[place:end]
            case 2:
                data[place:place] = data[place:end]
            case 3:
                data[place:place] = random.choice(_PIECES)
            case 4:
                del data[place:]
    return bytes(data)


def near(random: Random, valid: list[Any]) -> bytes:
    """Random bytes, or one of `valid` changed as bytes or as JSON."""
    kind = random.random()
    if kind < 0.1:
        return random.randbytes(random.randrange(64))
    body = random.choice(valid)
    if kind < 0.45:
        return scrambled(random, json.dumps(body).encode())
    for _ in range(random.randint(1, 3)):
        body = changed(random, body)
    return json.dumps(body).encode()
