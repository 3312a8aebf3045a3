"""Decoding of dispatches, each by itself: what cannot be read is rejected by name, and the others
of its message are served."""

import json
import logging
from collections.abc import Sequence
from typing import Any

from shared.codec import decode
from shared.errors import DecodeError, OtherProtocol
from shared.ids import ClientName, ControllerId, RequestId
from shared.messages.dispatch import Dispatch, DispatchBatch, DispatchRejection, DispatchResult
from shared.messages.sender import decode_current

logger = logging.getLogger(__name__)

_MAX_DIGITS = 400


class ReadBatch:
    """The dispatches of one message, in its order.

    Attributes:
        owner, term: of the leader that sent it.
        dispatches: a rejection stands for each dispatch that cannot be decoded.
    """

    def __init__(
        self,
        owner: ControllerId,
        term: int,
        dispatches: Sequence[Dispatch | DispatchResult],
    ) -> None:
        self.owner = owner
        self.term = term
        self.dispatches = dispatches


def read_batch(payload: bytes) -> ReadBatch:
    """Decode a `DispatchBatch`.

    Raises:
        OtherProtocol: the message has another version.
        DecodeError: not even its dispatches can be told apart.
    """
    try:
        batch = decode_current(DispatchBatch, payload)
    except OtherProtocol:
        raise
    except DecodeError as error:
        logger.warning("a message of dispatches is decoded one by one: %s", error.message)
        return _read_parts(payload, error)
    return ReadBatch(batch.owner, batch.term, batch.dispatches)


def _read_parts(payload: bytes, whole: DecodeError) -> ReadBatch:
    """Split a message with a parser that has no limit of depth of its own: the message nests its
    requests deeper than their clients did, and the decoder of messages has a limit."""
    try:
        # A byte that is no UTF-8 becomes half of a surrogate pair, which `decode` rejects.
        text = payload.decode(errors="surrogateescape")
        fields = json.loads(text, parse_int=_number)
        parts = fields.pop("dispatches")
        head = decode_current(DispatchBatch, _json({**fields, "dispatches": []}))
        found = [_read_part(part) for part in parts]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise whole from None
    return ReadBatch(head.owner, head.term, found)


def _read_part(part: Any) -> Dispatch | DispatchResult:
    try:
        return decode(Dispatch, _json(part))
    except DecodeError as error:
        problem = error.message
    except RecursionError:
        problem = "it is nested too deeply"
    named = part if isinstance(part, dict) else {}
    request_id, client, attempt = (named.get(key) for key in ("request_id", "client", "attempt"))
    rejection = DispatchRejection(code="invalid_request", message=problem)
    logger.warning("a dispatch cannot be decoded: %s", problem, extra={"request_id": request_id})
    return DispatchResult(
        request_id=RequestId(request_id if isinstance(request_id, str) else ""),
        client=ClientName(client if isinstance(client, str) else ""),
        attempt=attempt if isinstance(attempt, int) else 0,
        refusal=rejection,
    )


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _number(digits: str) -> float:
    """Python rejects integers of very many digits; as a float one is infinite, which `decode`
    rejects."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)
