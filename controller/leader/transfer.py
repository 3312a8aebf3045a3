"""Transfers the requests that no worker has from a leader that shuts down to the next leader."""

import asyncio
import time
from collections.abc import Sequence

from controller.fleet.registry import NodeRegistry
from controller.leader.leader import LeaderService
from controller.requests.events import RequestsTransferred
from controller.requests.restored_request import transferred_request
from controller.requests.skills import Skills, models_for_dispatch
from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.codec import decode, encode
from shared.errors import BusError, DecodeError
from shared.ids import ControllerId
from shared.messages.dispatch import Dispatch, Transfer, TransferReply
from shared.messages.sender import decode_current
from shared.refused_messages import RefusedMessages

_ANSWER_S = 1.0
_ENVELOPE_BYTES = 1024


async def send_to_successor(
    bus: Bus,
    registry: NodeRegistry,
    controller: ControllerId,
    term: int,
    requests: Sequence[Dispatch],
) -> None:
    """Return once a leader of a higher term has accepted all requests."""
    while True:
        for report in registry.controllers:
            if report.leader and report.id != controller and report.term > term:
                if await send_transfer(bus, controller, term, report.id, requests):
                    return
        await asyncio.sleep(0.02)


async def send_transfer(
    bus: Bus,
    controller: ControllerId,
    term: int,
    successor: ControllerId,
    requests: Sequence[Dispatch],
) -> bool:
    """Whether the next leader accepted all requests. Sending them again is harmless."""
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


async def receive_transfer(
    bus: Bus,
    message: IncomingMessage,
    leader: LeaderService | None,
    skills: Skills,
    refused: RefusedMessages,
) -> None:
    """Accept the requests of the last leader, if this controller leads."""
    try:
        transfer = decode_current(Transfer, message.payload)
    except DecodeError as error:
        refused.add(error, message.subject)
        return
    if leader is not None and transfer.term >= leader.machine.term:
        leader = None  # the sender was not the leader before this one
    if leader is not None:
        now = time.monotonic()
        requests = [
            transferred_request(dispatch, models_for_dispatch(dispatch, skills), now)
            for dispatch in transfer.requests
        ]
        leader.handle(RequestsTransferred(requests))
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
