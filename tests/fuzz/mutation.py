"""Bytes near valid ones: of JSON, of subjects, of HTTP. The same seed gives the same."""

import json
from random import Random
from typing import Any

from tests.random_json import changed, near, scrambled

HOSTILE_PIECES = (
    b"\x0b", b"\x0c", b"\r", b"\x00", b"\x1c", b"\x1b[2J", b"\x7f", b"\x85", b"\xff", b"\xc3\x28",
    b"\xe2\x80\xae", b"*", b">", b"..", b"$SYS", b"%00", b"\xed\xa0\x80",
)  # fmt: skip
"""Bytes for the inside of a token, a header or a path."""

_DEPTHS = (30, 33, 64, 150, 197, 255, 1000, 20_000)
_DIGITS = (18, 19, 20, 30, 310, 4301, 100_000)
_COUNTS = (100, 5000, 60_000)
_LENGTHS = (65, 129, 257, 1000, 3900, 5000, 70_000)


def json_payload(random: Random, valid: list[Any]) -> bytes:
    """A body near one of `valid`; one of eight has something that is too deep, long, large or many
    inside."""
    if random.random() < 0.875:
        return near(random, valid)
    body = random.choice(valid)
    text = json.dumps(_marked(random, body))
    return text.replace(json.dumps(_MARK), _extreme(random), 1).encode(errors="surrogatepass")


_MARK = "\ue000extreme"


def _marked(random: Random, value: Any) -> Any:
    """The same with a mark somewhere inside."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(
            [*value, "chat_template_kwargs", "tools", "response_format", "messages"]
        )
        if key not in value:
            return {**value, key: _MARK if random.random() < 0.5 else {"x": _MARK}}
        return {**value, key: _marked(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.8:
        place = random.randrange(len(value))
        return [*value[:place], _marked(random, value[place]), *value[place + 1 :]]
    return _MARK


def _extreme(random: Random) -> str:
    match random.randrange(9):
        case 0:
            depth = random.choice(_DEPTHS)
            return "[" * depth + "]" * depth
        case 1:
            depth = random.choice(_DEPTHS)
            return '{"x":' * depth + "1" + "}" * depth
        case 2:
            return random.choice(("", "-")) + "9" * random.choice(_DIGITS)
        case 3:
            return random.choice(("1e400", "-1e400", "1e-400", "NaN", "Infinity", "-Infinity"))
        case 4:
            return random.choice(('"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\ud83d"'))
        case 5:
            item = random.choice(("0", '""', "{}", "[]", '{"role":"user","content":"x"}'))
            return "[" + ",".join([item] * random.choice(_COUNTS)) + "]"
        case 6:
            pairs = (f'"{number}":0' for number in range(random.choice(_COUNTS)))
            return "{" + ",".join(pairs) + "}"
        case 7:
            return '{"a":1,"a":2}'
        case _:
            return json.dumps(random.choice(("x", "\u202e", "\x1b")) * random.choice(_LENGTHS))


def token(random: Random, valid: bytes) -> bytes:
    """A token near a valid one."""
    match random.randrange(6):
        case 0:
            return valid
        case 1 | 2:
            place = random.randrange(len(valid) + 1)
            return valid[:place] + random.choice(HOSTILE_PIECES) + valid[place:]
        case 3:
            return (
                valid + random.choice((b"\x0b", b"\x0c", b"\r")) + b"%d" % random.randrange(1, 90)
            )
        case 4:
            return b"x" * random.choice(_LENGTHS[:5])
        case _:
            raw = random.randbytes(random.randrange(1, 12))
            return bytes(byte for byte in raw if byte not in b" \t\r\n") or b"x"


def json_value(random: Random, valid: Any) -> Any:
    """The same JSON with one to three values changed, still JSON."""
    for _ in range(random.randint(1, 3)):
        valid = changed(random, valid)
    return valid


def some_bytes(random: Random, valid: bytes) -> bytes:
    """The same bytes, usually; else scrambled, or with a hostile piece."""
    match random.randrange(6):
        case 0:
            return scrambled(random, valid)
        case 1:
            place = random.randrange(len(valid) + 1)
            return valid[:place] + random.choice(HOSTILE_PIECES) + valid[place:]
        case _:
            return valid
