"""Stream ownership: asks the leader which streams still belong to this worker, after the worker was
unreachable."""

import asyncio
from collections.abc import Iterable

from shared import subjects
from shared.bus import Bus
from shared.codec import decode, encode
from shared.errors import BusError, DecodeError
from shared.ids import WorkerId
from shared.messages.control import RequestQuery, RequestState
from worker.requests.active_request import ActiveRequest

_REPLY_TIMEOUT_S = 1.0


async def find_reassigned(
    bus: Bus, worker: WorkerId, requests: Iterable[ActiveRequest]
) -> list[ActiveRequest]:
    """Return the requests that have ended, or that another attempt serves.

    If no controller replies or knows a request, the request stays with this worker: its client may
    still be listening.
    """
    candidates = list(requests)
    async with asyncio.TaskGroup() as tasks:
        queries = [tasks.create_task(_state(bus, request)) for request in candidates]
    return [
        request
        for request, query in zip(candidates, queries, strict=True)
        if (state := query.result()) is not None and not _is_owned(request, state, worker)
    ]


async def _state(bus: Bus, request: ActiveRequest) -> RequestState | None:
    """Return the leader's state of a request; None without a reply to this question, or if the
    leader does not know the request."""
    client, request_id = request.key
    query = encode(RequestQuery(request_id=request_id))
    try:
        reply = await bus.request(
            subjects.request(client, "status"), query, timeout_s=_REPLY_TIMEOUT_S
        )
        state = decode(RequestState, reply.payload)
    except (BusError, DecodeError):
        return None
    is_answer = state.request_id == request_id and state.state != "unknown"
    return state if is_answer else None


def _is_owned(request: ActiveRequest, state: RequestState, worker: WorkerId) -> bool:
    attempt = request.dispatch.attempt
    if state.attempt != attempt:
        return state.attempt < attempt  # the leader does not know of this attempt yet
    return state.worker == worker  # None if the leader sent the terminal message itself
