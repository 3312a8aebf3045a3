"""The sender of a message. The body of a message between processes of the cluster names its sender,
and the subject says who that can be: only that process may publish there, or was asked there."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import orjson

from shared.codec import MAX_PROTOCOL, WireMessage, decode, shortened
from shared.errors import DecodeError, OtherProtocol, WrongSender
from shared.ids import BootId
from shared.version import PROTOCOL


class Sender(NamedTuple):
    """A worker or controller; `boot_id` is None if the message does not say which boot."""

    id: str
    boot_id: BootId | None


class SentMessage(WireMessage):
    """Base of the messages that name their sender."""

    @property
    @abstractmethod
    def senders(self) -> Sequence[Sender]:
        """Whoever the body names as its sender: several, if it contains another such message."""


M = TypeVar("M", bound=WireMessage)
S = TypeVar("S", bound=SentMessage)


def decode_current(kind: type[M], payload: bytes) -> M:
    """Return the message of this protocol in `payload`.

    Raises:
        OtherProtocol: the message has another version, also if it cannot be decoded.
        DecodeError: `payload` is not a message of this kind.
    """
    try:
        message = decode(kind, payload)
    except DecodeError:
        check_protocol(_protocol_in(payload), payload)
        raise
    check_protocol(message.protocol, payload)
    return message


def decode_from(
    sender: str,
    kind: type[S],
    payload: bytes,
    *,
    boot_id: BootId | None = None,
    any_protocol: bool = False,
) -> S:
    """Return the message that `sender` sent.

    Args:
        sender: who may have sent it, by its subject or because it was asked.
        boot_id: the boot that may have sent it; None if that is not known.
        any_protocol: accept other versions, too: for tools of people, and to find out who leads.

    Raises:
        OtherProtocol: the message has another version, also if it cannot be decoded.
        WrongSender: the body names somebody else, or another boot.
        DecodeError: `payload` is not a message of this kind.
    """
    message = decode(kind, payload) if any_protocol else decode_current(kind, payload)
    for named in message.senders:
        if named.id != sender:
            raise WrongSender(
                f"a {kind.__name__} of {shortened(named.id)!r} came from {sender}", payload
            )
        if boot_id is not None and named.boot_id not in (None, boot_id):
            raise WrongSender(f"a {kind.__name__} is of another boot of {sender}", payload)
    return message


def check_protocol(protocol: int | None, payload: bytes) -> None:
    """Raise OtherProtocol for another version; None stands for a message without one."""
    if protocol is not None and protocol != PROTOCOL:
        raise OtherProtocol(f"it has protocol {protocol}, not {PROTOCOL}", payload, protocol)


def _protocol_in(payload: bytes) -> int | None:
    """Return the version in bytes that cannot be decoded; None if there is none."""
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
    protocol = value.get("protocol") if isinstance(value, dict) else None
    return protocol if type(protocol) is int and 0 <= protocol <= MAX_PROTOCOL else None
