"""Frames on the socket pair: four bytes of length, big endian, then `[kind, fields]` as JSON."""

import json
import struct
from dataclasses import asdict, is_dataclass
from typing import Any, get_args

import orjson

from shared.errors import DecodeError, RequestError
from shared.messages.structured import Structure
from worker.link.facts import (
    BatchMeasurements,
    CachedSequenceMeasurements,
    CachedSequencesMeasured,
    EngineMeasured,
    Fact,
    PrefixCacheMeasurements,
    SequenceOutput,
    StepCompleted,
    ToolCallPiece,
)
from worker.link.orders import (
    EmbeddingOptions,
    Order,
    PrefetchPrefix,
    Sampling,
    SentCharacters,
    SubmitSequence,
    ToolCallingOptions,
)

HEADER = struct.Struct(">I")
EXIT_AGENT_GONE = 3
"""Exit status of an engine that cannot read its agent's orders, or has lost its agent."""
MAX_FRAME_BYTES = 64 * 1024 * 1024
BACKLOG_LIMIT_BYTES = 8 * 1024 * 1024
"""Above this many unread bytes on the agent's side, the engine pauses decoding."""

_OPTIONS = (
    ("calling", ToolCallingOptions),
    ("structure", Structure),
    ("embedding", EmbeddingOptions),
)
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (*get_args(Order), *get_args(Fact))}


def encode_frame(message: Order | Fact) -> bytes:
    """Return the frame of a message.

    Raises:
        RequestError: the message has a value that no frame can carry, such as a number of more than
            64 bits, or is larger than `MAX_FRAME_BYTES`.
    """
    kind = type(message).__name__
    try:
        return _frame(orjson.dumps([kind, message]), kind)
    except TypeError as error:
        raise RequestError(f"{kind} cannot be encoded: {error}", code="request_failed") from None


def encode_fact(fact: Fact) -> bytes:
    """Return the frame of a fact. Text that is not valid Unicode is replaced: a template or a
    tokenizer can put half of a surrogate pair into an error message.

    Raises:
        RequestError: as `encode_frame`.
    """
    kind = type(fact).__name__
    try:
        body = orjson.dumps([kind, fact])
    except TypeError:
        body = json.dumps([kind, asdict(fact)], ensure_ascii=False).encode(errors="replace")
    return _frame(body, kind)


def _frame(body: bytes, kind: str) -> bytes:
    if len(body) > MAX_FRAME_BYTES:
        raise RequestError(
            f"{kind} has {len(body)} bytes, more than {MAX_FRAME_BYTES}", code="request_failed"
        )
    return HEADER.pack(len(body)) + body


def decode_body(body: bytes) -> Order | Fact:
    """Decode the body of a frame: the bytes after the header.

    Raises:
        DecodeError: the bytes are not a message of this protocol.
    """
    try:
        name, fields = orjson.loads(body)
        kind = _KINDS[name]
        if kind is StepCompleted:
            return StepCompleted([_output(output) for output in fields["outputs"]])
        if kind is SubmitSequence:
            return _submit(fields)
        if kind is PrefetchPrefix:
            return PrefetchPrefix(_submit(fields["order"]))
        if kind is EngineMeasured:
            fields["batches"] = [BatchMeasurements(**batch) for batch in fields["batches"]]
            fields["kv_memory"] = PrefixCacheMeasurements(**fields["kv_memory"])
        if kind is CachedSequencesMeasured:
            fields["sequences"] = [CachedSequenceMeasurements(**one) for one in fields["sequences"]]
        message = kind(**fields)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise DecodeError(f"not a message of the engine link: {error!r}", body) from None
    assert is_dataclass(message)
    return message  # type: ignore[return-value]


def _submit(order: dict[str, Any]) -> SubmitSequence:
    order["sampling"] = Sampling(**order["sampling"])
    order["sent"] = SentCharacters(**order["sent"])
    for name, kind in _OPTIONS:
        if order[name] is not None:
            order[name] = kind(**order[name])
    return SubmitSequence(**order)


def _output(output: dict[str, Any]) -> SequenceOutput:
    if output["calls"]:
        output["calls"] = [ToolCallPiece(**call) for call in output["calls"]]
    return SequenceOutput(**output)


def frame_length(header: bytes) -> int:
    """Return the number of bytes that follow a header.

    Raises:
        DecodeError: the header has a wrong size, or announces more than `MAX_FRAME_BYTES`: the
            stream is corrupt.
    """
    if len(header) != HEADER.size:
        raise DecodeError(f"a header has {HEADER.size} bytes, not {len(header)}", header)
    (length,) = HEADER.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise DecodeError(
            f"a frame of {length} bytes exceeds the limit of {MAX_FRAME_BYTES}", header
        )
    return int(length)
