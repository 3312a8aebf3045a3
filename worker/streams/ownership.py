"""Asking the leader which streams are still this worker's, after it was away."""

import asyncio
from collections.abc import Iterable

from shared import subjects
from shared.bus import Bus
from shared.codec import decode, encode
from shared.errors import BusError, DecodeError
from shared.ids import WorkerId
from shared.messages.control import RequestQuery, RequestState
from worker.requests.active_request import ActiveRequest

_ANSWER_WAIT_S = 1.0


async def find_reassigned(
    bus: Bus, worker: WorkerId, requests: Iterable[ActiveRequest]
) -> list[ActiveRequest]:
    """Those that ended, or that another attempt serves.

    Where no controller answers, or none knows, a request stays this worker's: its client may still
    be there.
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
    """What the leader says of it; None where nobody does."""
    client, request_id = request.key
    query = encode(RequestQuery(request_id=request_id))
    try:
        answer = await bus.request(
            subjects.request(client, "status"), query, timeout_s=_ANSWER_WAIT_S
        )
        state = decode(RequestState, answer.payload)
    except (BusError, DecodeError):
        return None
    return None if state.state == "unknown" else state


def _is_ours(request: ActiveRequest, state: RequestState, worker: WorkerId) -> bool:
    attempt = request.dispatch.attempt
    if state.attempt != attempt:
        return state.attempt < attempt  # it does not know of this one yet
    return state.worker == worker  # none where the leader told the end itself
