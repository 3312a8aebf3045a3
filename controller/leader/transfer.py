"""What no worker has goes from the leader that leaves to the next one."""

import logging
import time
from collections.abc import Sequence

from controller.leader.leader import Leader
from controller.requests.events import Transferred
from controller.requests.request import ClientRequest
from controller.requests.skills import Skills, models_told
from shared import subjects
from shared.bus import Bus, BusMessage
from shared.codec import decode, encode
from shared.errors import BusError, DecodeError
from shared.ids import ControllerId
from shared.messages.dispatch import Dispatch, Transfer, TransferReply

logger = logging.getLogger(__name__)

_ANSWER_S = 1.0
_ENVELOPE_BYTES = 1024


async def give(
    bus: Bus,
    controller: ControllerId,
    term: int,
    successor: ControllerId,
    requests: Sequence[Dispatch],
) -> bool:
    """Whether the next leader took them all: given again, they are the same requests."""
    for batch in _batches(requests, bus.max_payload - _ENVELOPE_BYTES):
        message = Transfer(controller=controller, term=term, requests=batch)
        subject = subjects.controller_transfer(successor)
        try:
            answer = await bus.request(subject, encode(message), timeout_s=_ANSWER_S)
            if not decode(TransferReply, answer.payload).taken:
                return False
        except (BusError, DecodeError):
            return False
    return True


async def taken(bus: Bus, message: BusMessage, leader: Leader | None, skills: Skills) -> None:
    """Take what the leader before gives, if this controller leads."""
    try:
        transfer = decode(Transfer, message.payload)
    except DecodeError as error:
        logger.error("what the leader before gives cannot be read: %s", error.message)
        return
    if leader is not None:
        now = time.monotonic()
        carried = [
            ClientRequest.carried(each, models_told(each, skills), now)
            for each in transfer.requests
        ]
        leader.on(Transferred(carried))
    if message.reply:
        await bus.publish(message.reply, encode(TransferReply(taken=leader is not None)))


def _batches(requests: Sequence[Dispatch], max_bytes: int) -> list[list[Dispatch]]:
    batches: list[list[Dispatch]] = [[]]
    size = 0
    for request in requests:
        bytes_ = len(request.model_dump_json())
        if batches[-1] and size + bytes_ > max_bytes:
            batches.append([])
            size = 0
        batches[-1].append(request)
        size += bytes_
    return batches
