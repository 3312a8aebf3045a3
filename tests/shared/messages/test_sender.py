"""A message is read only if it is of this protocol, and from whom it says."""

import json
from typing import Any

import pytest

from shared.codec import encode
from shared.errors import DecodeError, OtherProtocol, WrongSender
from shared.ids import BootId, WorkerId
from shared.messages.control import ClaimReport, ControlReply
from shared.messages.events import KeptPrefixes
from shared.messages.sender import decode_from
from shared.version import PROTOCOL

MAC, BOOT = WorkerId("mac-1"), BootId("b1")


def reply(worker: str = MAC, boot: str | None = BOOT, **fields: Any) -> bytes:
    known = BootId(boot) if boot is not None else None
    return encode(ControlReply(worker=WorkerId(worker), boot_id=known, ok=True, **fields))


def kept(worker: str, boot: str = BOOT) -> KeptPrefixes:
    return KeptPrefixes(worker=WorkerId(worker), boot_id=BootId(boot), number=1)


@pytest.mark.parametrize("boot", [BOOT, None])
def test_a_message_of_whom_was_asked_is_read(boot: BootId | None) -> None:
    assert decode_from(MAC, ControlReply, reply(boot=boot), boot_id=BOOT).ok


@pytest.mark.parametrize(
    "payload",
    [
        reply("mac-2"),
        reply(boot="b2"),
        reply(kept=kept("mac-2")),
        reply(claimed=ClaimReport(term=1, kept=kept("mac-2"))),
        reply(claimed=ClaimReport(term=1, kept=kept(MAC, "b2"))),
        reply("x" * 10_000),
    ],
)
def test_one_that_names_another_worker_or_boot_anywhere_is_not(payload: bytes) -> None:
    with pytest.raises(WrongSender) as caught:
        decode_from(MAC, ControlReply, payload, boot_id=BOOT)
    assert caught.value.payload == payload and len(caught.value.message) < 200


@pytest.mark.parametrize("protocol", [0, 1, PROTOCOL - 1, PROTOCOL + 1])
@pytest.mark.parametrize("ok", [True, "nonsense"])
def test_another_protocol_is_told_from_what_cannot_be_read(protocol: int, ok: object) -> None:
    payload = json.dumps({**json.loads(reply()), "protocol": protocol, "ok": ok}).encode()
    with pytest.raises(OtherProtocol) as caught:
        decode_from(MAC, ControlReply, payload)
    assert caught.value.protocol == protocol


@pytest.mark.parametrize("protocol", [True, -1, 2.5, "2", 10**7, None, [], 2**64])
def test_nonsense_for_a_protocol_is_undecodable(protocol: object) -> None:
    payload = json.dumps({**json.loads(reply()), "protocol": protocol, "ok": "?"}).encode()
    with pytest.raises(DecodeError) as caught:
        decode_from(MAC, ControlReply, payload)
    assert caught.value.kind == "undecodable"


@pytest.mark.parametrize("payload", [b"", b"\xff", b"[]", b"[" * 100_000])
def test_bytes_that_are_no_object_are_undecodable(payload: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_from(MAC, ControlReply, payload)
    assert caught.value.kind == "undecodable"


def test_tools_of_people_read_every_protocol() -> None:
    payload = json.dumps({**json.loads(reply()), "protocol": 2}).encode()
    assert decode_from(MAC, ControlReply, payload, any_protocol=True).protocol == 2
