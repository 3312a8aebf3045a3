"""Asking the controllers which streams are still ours, after we were away."""

import asyncio
from collections.abc import Iterable

from shared import subjects
from shared.bus import Bus
from shared.errors import BusError, DecodeError
from shared.ids import WorkerId
from shared.messages.codec import decode, encode
from shared.messages.control import RequestQuery, RequestState
from worker.active_request import ActiveRequest

_ANSWER_WAIT_S = 1.0
_OTHERS_WAIT_S = 0.25


async def find_lost(
    bus: Bus, worker: WorkerId, requests: Iterable[ActiveRequest]
) -> list[ActiveRequest]:
    """Those whose owner ended them, or gave them to another attempt.

    Where no owner answers, the request stays ours: its client may still be there.
    """
    asked = list(requests)
    async with asyncio.TaskGroup() as tasks:
        answers = [tasks.create_task(_state(bus, request)) for request in asked]
    return [
        request
        for request, answer in zip(asked, answers, strict=True)
        if (state := answer.result()) is not None and not _is_ours(request, state, worker)
    ]


async def _state(bus: Bus, request: ActiveRequest) -> RequestState | None:
    """What the controller says that knows it best; None where none does."""
    client, request_id = request.key
    query = encode(RequestQuery(request_id=request_id))
    subject = subjects.request(client, "status")
    try:
        answer = await bus.request(subject, query, timeout_s=_ANSWER_WAIT_S)
        state = decode(RequestState, answer.payload)
        if not _is_of_before(request, state):
            return state
        answers = await bus.request_many(subject, query, wait_s=_OTHERS_WAIT_S)
        states = [decode(RequestState, answer.payload) for answer in answers]
    except (BusError, DecodeError):
        return None
    return next((state for state in states if not _is_of_before(request, state)), None)


def _is_of_before(request: ActiveRequest, state: RequestState) -> bool:
    """Whether it speaks of an attempt that had ended before ours began: a controller remembers what
    its client cancelled, and asked for again at another one."""
    running = state.state in ("accepted", "dispatching", "running")
    return not running and state.attempt < request.dispatch.attempt


def _is_ours(request: ActiveRequest, state: RequestState, worker: WorkerId) -> bool:
    return (
        state.state in ("dispatching", "running")
        and state.worker == worker
        and state.attempt == request.dispatch.attempt
    )
