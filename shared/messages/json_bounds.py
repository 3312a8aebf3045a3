"""Bounds of JSON from outside. The first process that receives a body checks them before it keeps
anything of it; those of a large body are counted on its bytes, before it is parsed.

A body within these bounds can be encoded and decoded by every later hop (orjson, pydantic, a
dispatch, a frame of the engine link, a stored session), and costs each of them a bounded time.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from shared.codec import first_problem, shortened
from shared.errors import DecodeError, InvalidRequest

MAX_DEPTH = 32
"""Objects and lists inside one another. A dispatch has six more around a request, and its decoder
reads 200."""
MAX_CONTAINERS = 16_384
"""Objects and lists."""
MAX_LISTED_OBJECTS = 8192
"""Objects that stand in lists: messages, their parts and calls, tools."""
MAX_STRINGS = 131_072
"""Strings, keys included."""
MAX_VALUES = 262_144
"""Values that stand in an object or a list; most of them can only be token ids."""
MAX_KEYS = 4096
"""Keys of one object."""
MAX_KEY_CHARACTERS = 1024
MAX_QUERY_BYTES = 4096
"""A query of a client: an id, and a few numbers."""

_SMALL_BYTES = 24 * 1024
"""A body of so few bytes has not more than is allowed of anything that is counted on bytes."""
_BLANKS = b" \t\r\n"
_TO_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_INTEGERS = range(-(2**63), 2**63)
_INTEGER_DIGITS = 19
_LONG_INTEGER = re.compile(rb"[,:\[](-?)(9[0-9]{18}|[0-9]{20,})(?=[,}\]])")
"""Every integer of more than 64 bits, and few others."""

M = TypeVar("M", bound=BaseModel)


class BeyondBounds(InvalidRequest):
    """A body has too much of something, so it was not parsed."""


class BeyondJson(InvalidRequest):
    """A value that only some parsers read, or read as the same: NaN, an infinite number, an integer
    of more than 64 bits."""


_CONTAINER_BYTES = 512
_VALUE_BYTES = 32


@dataclass(frozen=True, slots=True)
class Outline:
    """What a parsed body has.

    Attributes:
        size_bytes: of its JSON.
        values: that stand in its objects and lists.
        keys: of all objects.
    """

    size_bytes: int
    containers: int
    values: int
    keys: int

    @classmethod
    def of(cls, payload: bytes) -> "Outline":
        """Return the outline of JSON by its bytes, whatever it has."""
        counts = Counts.of(payload)
        return cls(len(payload), counts.containers, counts.values, counts.keys)

    @property
    def memory_bytes(self) -> int:
        """About what the parsed body takes in memory: its text, and what is measured for objects,
        lists and numbers in them."""
        return self.size_bytes + _CONTAINER_BYTES * self.containers + _VALUE_BYTES * self.values


@dataclass(frozen=True, slots=True)
class Counts:
    """What a body has, counted on its bytes. For bytes that are no JSON the numbers mean nothing.

    Attributes:
        listed_objects: only counted if there are as many containers.
        values: an empty object or list counts as if it had one.
        long_integer: whether an integer has more than 64 bits.
    """

    strings: int
    containers: int = 0
    listed_objects: int = 0
    values: int = 0
    keys: int = 0
    long_integer: bool = False

    @classmethod
    def of(cls, payload: bytes) -> "Counts":
        """Count; only the strings if there are more than `MAX_STRINGS`."""
        if b"\\" in payload:  # an escaped quote ends no string
            payload = payload.replace(b"\\\\", b"").replace(b'\\"', b"")
        strings = payload.count(b'"') // 2
        if strings > MAX_STRINGS:
            return cls(strings)
        bare = b"".join(payload.split(b'"')[::2]).translate(None, _BLANKS)
        containers = bare.count(b"{") + bare.count(b"[")
        return cls(
            strings,
            containers,
            bare.count(b"[{") + bare.count(b",{") if containers > MAX_LISTED_OBJECTS else 0,
            bare.count(b",") + containers,
            bare.count(b":"),
            _has_long_integer(bare),
        )

    @property
    def excess(self) -> str | None:
        """What the body has too much of, or None. Without an excess it is cheap to parse."""
        for count, limit, what in (
            (self.strings, MAX_STRINGS, "strings"),
            (self.containers, MAX_CONTAINERS, "objects and lists"),
            (self.listed_objects, MAX_LISTED_OBJECTS, "messages, parts, calls and tools in total"),
            (self.values, MAX_VALUES, "values"),
        ):
            if count > limit:
                return f"it has {count} {what}; at most {limit} are allowed"
        return None


def validate_json(
    kind: type[M], payload: bytes, *, allow_unknown: bool = False
) -> tuple[M, Outline]:
    """Return the object of type `kind` in a body from outside, and what the body has.

    Args:
        allow_unknown: keep unknown fields, for the caller to remove, instead of rejecting them.

    Raises:
        InvalidRequest: the body is beyond the bounds; `param` is the field, where one is at fault.
        ValidationError: the body is no JSON, or not of this type.
    """
    extra: Literal["allow"] | None = "allow" if allow_unknown else None
    try:
        outline = check_json(payload)
    except BeyondJson:
        kind.model_validate_json(payload, extra=extra)  # a field's own range says it better
        raise
    return kind.model_validate_json(payload, extra=extra), outline


def decode_query(kind: type[M], payload: bytes) -> M:
    """Return the query of a client in `payload`.

    Raises:
        DecodeError: it is too large, or not of this type; `param` names the field.
    """
    if len(payload) > MAX_QUERY_BYTES:
        text = f"{len(payload)} bytes; at most {MAX_QUERY_BYTES} are accepted"
        raise DecodeError(f"not a {kind.__name__}: {text}", payload)
    try:
        return validate_json(kind, payload)[0]
    except ValidationError as error:
        param, message = first_problem(error)
    except InvalidRequest as error:
        param, message = error.param, error.message
    raise DecodeError(f"not a {kind.__name__}: {message}", payload, param=param)


def check_json(payload: bytes) -> Outline:
    """Check a body against the bounds, and return what it has.

    Raises:
        BeyondBounds: it has too much of something to be parsed.
        BeyondJson: it has a value that not every parser reads, or it is no JSON.
        InvalidRequest: it is nested too deeply, or has too many or too long keys, or one twice.
    """
    counts = check_counts(payload)
    try:
        body = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("depth limit"):
            raise BeyondBounds(_DEEP) from None
        raise _beyond_json(payload, error.msg) from None
    outline = _check_containers(body, payload, counts.containers if counts is not None else None)
    if counts is None and _is_canonical(body, payload):
        return outline
    counts = counts or Counts.of(payload)
    if counts.keys != outline.keys:
        _check_duplicates(payload)
    if counts.long_integer:
        _check_numbers(payload)
    return outline


def check_counts(payload: bytes) -> Counts | None:
    """Return what a body has, counted before it is parsed; None if it is so small that it cannot
    have too much.

    Raises:
        BeyondBounds: it has too much of something to be parsed.
    """
    if len(payload) <= _SMALL_BYTES:
        return None
    counts = Counts.of(payload)
    if (excess := counts.excess) is not None:
        raise BeyondBounds(excess)
    return counts


def containers_by_depth(value: Any, total: int | None = None) -> Iterator[list[Any]]:
    """Yield the objects and lists of each depth, from the outermost on.

    Args:
        total: how many there are, if known: after the last one the rest is not looked at.
    """
    level = [value] if type(value) is dict or type(value) is list else []
    seen = 0
    while level:
        yield level
        seen += len(level)
        if seen == total:
            return
        level = [
            member
            for each in level
            for member in (each.values() if type(each) is dict else each)
            if (kind := type(member)) is dict or kind is list
        ]


def _is_canonical(body: Any, payload: bytes) -> bool:
    """Whether orjson writes the parsed body as it came: so no key is there twice, and no integer
    has more than 64 bits."""
    try:
        return payload == orjson.dumps(body, option=orjson.OPT_STRICT_INTEGER)
    except orjson.JSONEncodeError:  # an integer of more than 53 bits
        return False


def _has_long_integer(bare: bytes) -> bool:
    if b"0" * _INTEGER_DIGITS not in bare.translate(_TO_ZEROS):  # nearly always
        return False
    return any(
        len(digits) > _INTEGER_DIGITS or int(sign + digits) not in _INTEGERS
        for sign, digits in _LONG_INTEGER.findall(bare)
    )


_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"


def _check_containers(body: Any, payload: bytes, total: int | None = None) -> Outline:
    """Return what a body has.

    Args:
        total: see `containers_by_depth`.

    Raises:
        InvalidRequest: it is nested too deeply, or has too many or too long keys.
    """
    containers = values = keys = 0
    for depth, level in enumerate(containers_by_depth(body, total), start=1):
        if depth > MAX_DEPTH:
            field = _deepest_field(body)
            raise InvalidRequest(f"{field}: {_DEEP}" if field else _DEEP, param=field)
        containers += len(level)
        for each in level:
            values += (size := len(each))
            if type(each) is dict and size:
                keys += size
                _check_keys(each)
    return Outline(len(payload), containers, values, keys)


def _check_keys(value: dict[str, Any]) -> None:
    """Raises InvalidRequest: an object has too many keys, or a too long one."""
    if len(value) > MAX_KEYS:
        raise InvalidRequest(f"an object has {len(value)} keys; at most {MAX_KEYS} are allowed")
    if max(map(len, value)) > MAX_KEY_CHARACTERS:
        longest = shortened(max(value, key=len))
        text = f"a key has at most {MAX_KEY_CHARACTERS} characters"
        raise InvalidRequest(f"{longest}: {text}", param=longest)


def _deepest_field(body: Any) -> str | None:
    """Return the field of the outermost object that is nested too deeply."""
    if not isinstance(body, dict):
        return None
    depths = {name: sum(1 for _ in containers_by_depth(each)) for name, each in body.items()}
    return shortened(max(depths, key=lambda name: depths[name]))


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise InvalidRequest(f"{shortened(key)}: duplicate key", param=shortened(key))
        seen.add(key)


def _check_duplicates(payload: bytes) -> None:
    """Raises InvalidRequest: an object has a key twice."""
    try:
        json.loads(payload, object_pairs_hook=_reject_duplicates)
    except InvalidRequest:
        raise
    except RecursionError:  # what the second of two equal keys hides may be deeper than the rest
        raise BeyondBounds(_DEEP) from None
    except ValueError:  # an integer of more digits than Python reads
        pass


def _check_numbers(payload: bytes) -> None:
    """Raises BeyondJson: an integer has more than 64 bits."""
    try:
        path = _path_to_odd_number([json.loads(payload)])
    except ValueError:  # Python reads no integer of more than 4,300 digits
        raise BeyondJson("an integer has more than 64 bits") from None
    if path is not None:
        raise BeyondJson(f"{path}: an integer has at most 64 bits", param=path)


def _beyond_json(payload: bytes, problem: str) -> BeyondJson:
    try:
        path = _path_to_odd_number([json.loads(payload)])  # it reads NaN and infinite numbers
    except (ValueError, RecursionError):
        path = None
    if path is None:
        return BeyondJson(f"invalid JSON: {problem}")
    return BeyondJson(f"{path}: must be a finite number, of at most 64 bits", param=path)


def _path_to_odd_number(body: Any) -> str | None:
    """Return the dotted path of a number that is not finite or has more than 64 bits."""
    pending: list[tuple[Any, tuple[object, ...]]] = [(body, ())]
    while pending:
        container, path = pending.pop()
        named = container.items() if type(container) is dict else enumerate(container)
        for name, each in named:
            kind = type(each)
            if kind is dict or kind is list:
                pending.append((each, (*path, name)))
            elif (kind is int and each not in _INTEGERS) or (kind is float and each - each != 0):
                return shortened(".".join(map(str, (*path, name)[1:])))
    return None
