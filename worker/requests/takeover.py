"""What a leader that claims this worker learns of its requests."""

import math
import time
from collections.abc import Iterable
from typing import Any

from shared.codec import encode
from shared.ids import ControllerId
from shared.messages.control import AttemptRef, ClaimedRequest, ClaimedState
from shared.messages.dispatch import Continuation, Dispatch
from shared.messages.request_events import AttemptFailed
from shared.messages.stream import DoneMessage, FailedMessage
from worker.requests.active_request import ActiveRequest
from worker.requests.leader_events import failed_event
from worker.requests.table import RequestTable

_CLAIMED_STATES: dict[type[Any], ClaimedState] = {
    type(None): "running",
    DoneMessage: "finished",
    FailedMessage: "failed",
}


def claim_requests(
    table: RequestTable, leader: ControllerId, ended_within_ms: int | None
) -> list[ClaimedRequest]:
    """Make a leader the owner of all requests; returns those that wait or run here, were requeued
    recently, or ended recently.

    Args:
        ended_within_ms: how long ago a request may have ended to be returned; None: all that are
            remembered.
    """
    now = time.monotonic()
    for request in table.recent:
        request.owner = leader
    within_s = math.inf if ended_within_ms is None else ended_within_ms / 1000
    claimed = [_claimed_request(request) for request in table]
    claimed += [_claimed_request(entry.request, entry.event) for entry in table.requeued]
    ended = [request for request in table.ended if now - request.ended_at <= within_s]
    return claimed + [_claimed_request(request) for request in ended]


def request_contents(
    table: RequestTable, refs: Iterable[AttemptRef], max_bytes: int
) -> list[Dispatch]:
    """Return the contents of the first of these requests, up to `max_bytes` in total but at least
    one; requests that are not here are omitted."""
    found: list[Dispatch] = []
    size = 0
    for ref in refs:
        request = table.of_attempt((ref.client, ref.request_id), ref.attempt)
        if request is None:
            continue
        contents = _contents(request)
        size += len(encode(contents))
        if found and size > max_bytes:
            break
        found.append(contents)
    return found


def _claimed_request(
    request: ActiveRequest, requeued: AttemptFailed | None = None
) -> ClaimedRequest:
    """Describe a request; `requeued` is the event with which it was requeued, if it was."""
    dispatch, state, failure = request.dispatch, _CLAIMED_STATES[type(request.end)], requeued
    if isinstance(request.end, FailedMessage):
        failure = failed_event(request, request.end.error, terminal_sent=True)
    return ClaimedRequest(
        client=dispatch.client,
        request_id=dispatch.request_id,
        attempt=dispatch.attempt,
        state="returned" if requeued is not None else state,
        skill=dispatch.skill,
        model=dispatch.model,
        session_id=dispatch.request.ordered_session,
        fingerprint=request.fingerprint,
        tokens=request.tokens,
        resumed_tokens=len(dispatch.request.received_ids),
        failure=failure,
        retries=dispatch.retries,
        migrations=dispatch.migrations,
        crashes=dispatch.crashes,
    )


def _contents(request: ActiveRequest) -> Dispatch:
    """Return the dispatch of a request, with the tokens generated so far: another attempt would
    continue there."""
    known = {choice.number: choice for choice in request.choices if choice.token_ids}
    resume = Continuation(
        token_ids={number: choice.token_ids for number, choice in known.items()},
        text_sent={
            number: choice.text_sent
            for number, choice in known.items()
            if choice.text_sent is not None
        },
        finish_reasons={
            choice.number: choice.finish_reason
            for choice in request.choices
            if choice.finish_reason is not None
        },
        first_token_ms=request.times.first_token_ms,
        cached_tokens=request.cached_tokens,
    )
    return request.dispatch.model_copy(
        update={
            "inboxes": list(request.inboxes),
            "elapsed_ms": round(request.times.duration_ms(time.monotonic()), 3),
            "resume": resume if known else None,
        }
    )
