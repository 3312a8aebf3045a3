"""Requests that another leader accepted: workers claim them, or that leader transfers them."""

from controller.requests.answer_progress import AnswerProgress
from controller.requests.failed_attempts import FailedAttempts
from controller.requests.request import TrackedRequest, session_key
from shared.codec import encode
from shared.ids import BootId, ModelId, WorkerId
from shared.messages.control import ClaimedRequest
from shared.messages.dispatch import Dispatch
from shared.messages.json_bounds import Outline


def claimed_request(
    claim: ClaimedRequest, worker: WorkerId, boot_id: BootId, now: float
) -> TrackedRequest:
    """Return a request that a worker has, or had; its contents follow (`set_contents`)."""
    request = _restored(claim, [claim.model], claim.fingerprint, claim.session_id, now)
    request.state, request.worker, request.boot_id = "running", worker, boot_id
    request.model, request.reported_at = claim.model, now
    request.reported_tokens = claim.tokens
    request.progress = AnswerProgress(claim.resumed_tokens)
    request.pending_requeue = claim.failure if claim.state == "returned" else None
    return request


def transferred_request(dispatch: Dispatch, models: list[ModelId], now: float) -> TrackedRequest:
    """Return a request that another leader transferred."""
    session_id = dispatch.request.ordered_session
    request = _restored(dispatch, models, dispatch.body_fingerprint, session_id, now)
    request.set_contents(dispatch, models, now)
    request.memory_bytes = memory_bytes_of(dispatch)
    return request


def memory_bytes_of(dispatch: Dispatch) -> int:
    """About what the contents of a request take in memory."""
    return Outline.of(encode(dispatch.request)).memory_bytes


def _restored(
    source: ClaimedRequest | Dispatch,
    models: list[ModelId],
    fingerprint: str,
    session_id: str | None,
    now: float,
) -> TrackedRequest:
    return TrackedRequest(
        source.request_id,
        source.client,
        source.skill,
        [],
        models,
        now,
        fingerprint,
        session=session_key(source.client, session_id),
        attempt=source.attempt,
        failures=FailedAttempts(
            source.retries, source.migrations, source.crashes, interrupted=source.retries > 0
        ),
        updated_at=now,
    )
