"""What no worker has goes from the leader that leaves to the next one."""

import time
from collections.abc import Sequence

from controller.answer_progress import AnswerProgress
from controller.leader import Leader
from controller.lifecycle import Transferred
from controller.request import Request
from controller.validation import Skills, models_of
from shared import subjects
from shared.bus import Bus, Message
from shared.errors import BusError, DecodeError, RequestError
from shared.ids import ControllerId
from shared.messages.codec import decode, encode
from shared.messages.dispatch import Transfer, TransferredRequest, TransferReply

_ANSWER_S = 1.0
_ENVELOPE_BYTES = 1024


async def give(
    bus: Bus,
    controller: ControllerId,
    term: int,
    successor: ControllerId,
    requests: Sequence[TransferredRequest],
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


async def taken(bus: Bus, message: Message, leader: Leader | None, skills: Skills) -> None:
    """Take what the leader before gives, if this controller leads."""
    if leader is not None:
        transfer = decode(Transfer, message.payload)
        now = time.monotonic()
        leader.on(Transferred([_request(each, skills, now) for each in transfer.requests]))
    await bus.publish(message.reply, encode(TransferReply(taken=leader is not None)))


def _request(told: TransferredRequest, skills: Skills, now: float) -> Request:
    """As the leader before had it."""
    body = told.request
    assert body.request_id is not None
    try:
        models = models_of(told.skill, body.model, skills)
    except RequestError:
        models = []
    request = Request.arrived(
        told.client,
        told.skill,
        list(told.inboxes),
        body,
        models,
        request_id=body.request_id,
        seed=told.seed,
        now=now,
        elapsed_before_ms=told.elapsed_ms,
    )
    request.attempt, request.crashes = told.attempt, told.crashes
    request.failures, request.migrations = told.retries, told.migrations
    request.progress = AnswerProgress.of(told.resume, len(body.heard_ids))
    return request


def _batches(
    requests: Sequence[TransferredRequest], max_bytes: int
) -> list[list[TransferredRequest]]:
    batches: list[list[TransferredRequest]] = [[]]
    size = 0
    for request in requests:
        bytes_ = len(request.model_dump_json())
        if batches[-1] and size + bytes_ > max_bytes:
            batches.append([])
            size = 0
        batches[-1].append(request)
        size += bytes_
    return batches
