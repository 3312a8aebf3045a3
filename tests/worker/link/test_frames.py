"""Every message of the link survives its frame, and bytes that are none say so."""

import struct
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import DecodeError
from shared.ids import ModelId
from shared.messages.model_status import Batching
from shared.messages.stream import FinishReason
from shared.messages.structured import Structure, StructureKind
from worker.link.facts import (
    BatchMeasurements,
    CachedSequenceMeasurements,
    Fact,
    PrefixCacheMeasurements,
    SequenceOutput,
    ToolCallPiece,
)
from worker.link.frames import (
    HEADER,
    MAX_FRAME_BYTES,
    decode_body,
    encode_frame,
    frame_length,
)
from worker.link.orders import (
    EmbeddingOptions,
    Order,
    Sampling,
    SentCharacters,
    SubmitSequence,
    ToolCallingOptions,
)

_INTEGERS = st.integers(0, 2**64 - 1)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | _FLOATS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def _messages(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: _FIELDS[hint] for name, hint in hints.items()})


_FIELDS: dict[Any, st.SearchStrategy[Any]] = {
    int: _INTEGERS,
    float: _FLOATS,
    str: st.text(),
    ModelId: st.text(),
    int | None: st.none() | _INTEGERS,
    str | None: st.none() | st.text(),
    float | None: st.none() | _FLOATS,
    Batching: st.sampled_from(get_args(Batching)),
    StructureKind: st.sampled_from(get_args(StructureKind)),
    FinishReason | None: st.none() | st.sampled_from(get_args(FinishReason)),
    list[int]: st.lists(_INTEGERS),
    list[int] | None: st.none() | st.lists(_INTEGERS),
    list[str]: st.lists(st.text()),
    dict[str, float]: st.dictionaries(st.text(), _FLOATS),
    dict[str, str]: st.dictionaries(st.text(), st.text()),
    list[dict[str, Any]] | None: st.none()
    | st.lists(st.dictionaries(st.text(), _JSON, max_size=3), max_size=3),
    SubmitSequence: st.deferred(lambda: _messages(SubmitSequence)),
    Sampling: st.deferred(lambda: _messages(Sampling)),
    list[SequenceOutput]: st.lists(st.deferred(lambda: _messages(SequenceOutput)), max_size=4),
    SentCharacters: st.deferred(lambda: _messages(SentCharacters)),
    ToolCallingOptions | None: st.none() | st.deferred(lambda: _messages(ToolCallingOptions)),
    EmbeddingOptions | None: st.none() | st.deferred(lambda: _messages(EmbeddingOptions)),
    Structure | None: st.none() | st.deferred(lambda: _messages(Structure)),
    list[ToolCallPiece]: st.lists(st.deferred(lambda: _messages(ToolCallPiece)), max_size=3),
    dict[str, Any]: st.dictionaries(st.text(), _JSON, max_size=3),
    Any: _JSON,
    bool: st.booleans(),
    list[dict[str, Any]]: st.lists(st.dictionaries(st.text(), _JSON, max_size=3), max_size=3),
    PrefixCacheMeasurements: st.deferred(lambda: _messages(PrefixCacheMeasurements)),
    list[CachedSequenceMeasurements]: st.lists(
        st.deferred(lambda: _messages(CachedSequenceMeasurements)), max_size=3
    ),
    list[BatchMeasurements]: st.lists(
        st.deferred(lambda: _messages(BatchMeasurements)), max_size=3
    ),
}


@pytest.mark.parametrize("kind", [*get_args(Order), *get_args(Fact)])
@given(data=st.data())
def test_every_message_comes_out_of_its_frame_as_it_went_in(
    kind: type[Any], data: st.DataObject
) -> None:
    message = data.draw(_messages(kind))
    frame = encode_frame(message)
    header, body = frame[: HEADER.size], frame[HEADER.size :]
    assert frame_length(header) == len(body)
    assert decode_body(body) == message


def test_a_header_may_announce_the_longest_frame_but_not_one_byte_more() -> None:
    assert frame_length(struct.pack(">I", MAX_FRAME_BYTES)) == MAX_FRAME_BYTES
    with pytest.raises(DecodeError, match=str(MAX_FRAME_BYTES + 1)):
        frame_length(struct.pack(">I", MAX_FRAME_BYTES + 1))
