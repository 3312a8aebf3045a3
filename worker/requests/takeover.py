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
from worker.requests.isolation import FailureIsolation
from worker.requests.leader_events import failed_event
from worker.requests.table import RequestTable

_CLAIMED_STATES: dict[type[Any], ClaimedState] = {
    type(None): "running",
    DoneMessage: "finished",
    FailedMessage: "failed",
}


def claim_requests(
    table: RequestTable,
    leader: ControllerId,
    ended_within_ms: int | None,
    max_bytes: int,
    isolation: FailureIsolation,
) -> list[ClaimedRequest]:
    """Make a leader the owner of all requests; returns those that wait or run here, were requeued
    recently, or ended recently.

    Args:
        ended_within_ms: how long ago a request may have ended to be returned; None: all that are
            remembered.
        max_bytes: those that ended before are left out if all would have more: clients end requests
            as fast as they like, and a claim must not fail for it.
    """
    now = time.monotonic()
    for request in table.recent:
        request.owner = leader
    within_s = math.inf if ended_within_ms is None else ended_within_ms / 1000
    ended = [request for request in table.ended if now - request.ended_at <= within_s]
    present: list[tuple[ActiveRequest, AttemptFailed | None]] = [
        *((request, None) for request in table),
        *((entry.request, entry.event) for entry in table.requeued),
        *((request, None) for request in reversed(ended)),
    ]
    claimed: list[ClaimedRequest] = []
    size = 0
    for request, requeued in present:
        with isolation.of(request, "the claim"):
            claim = _claimed_request(request, requeued)
            size += len(encode(claim))
            if request.end is not None and size > max_bytes:
                break
            claimed.append(claim)
    return claimed


def request_contents(
    table: RequestTable, refs: Iterable[AttemptRef], max_bytes: int, isolation: FailureIsolation
) -> list[Dispatch]:
    """Return the contents of the first of these requests, up to `max_bytes` in total but at least
    one; requests that are not here are omitted."""
    found: list[Dispatch] = []
    size = 0
    for ref in refs:
        request = table.of_attempt((ref.client, ref.request_id), ref.attempt)
        if request is None:
            continue
        with isolation.of(request, "its contents for the leader"):
            contents = _contents(request)
            size += len(encode(contents))
            if found and size > max_bytes:
                break
            found.append(contents)
    return found


def _claimed_request(
    request: ActiveRequest, requeued: AttemptFailed | None = None
) -> ClaimedRequest:
    """Describe a request; `requeued` is the event with which it was requeued, if it was. One whose
    terminal message waits to be published still runs: the leader starts the next turn of its
    session once it has ended. The event of its end follows."""
    dispatch, end = request.dispatch, request.end if request.end_published else None
    state, failure = _CLAIMED_STATES[type(end)], requeued
    if isinstance(end, FailedMessage):
        failure = failed_event(request, end.error, terminal_sent=True)
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
