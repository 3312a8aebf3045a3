"""What the leader is told of a request on this worker: new tokens, and the end."""

from shared.messages.request_events import AttemptFailed, RequestCompleted, TokensEmitted
from shared.messages.stream import ErrorDetails
from worker.link.facts import SequenceOutput
from worker.requests.active_choice import ActiveChoice, output_characters
from worker.requests.active_request import ActiveRequest


def tokens_emitted(
    request: ActiveRequest, choice: ActiveChoice, output: SequenceOutput
) -> TokensEmitted | None:
    """Return the event of an output, which is published before the client's message; None if the
    leader knows the output already. The first event of a request carries its cached tokens."""
    several = len(request.choices) > 1
    finish_reason = output.finish_reason if several and not choice.known_end else None
    has_content = bool(output.token_ids or output_characters(output))
    is_new = not choice.is_known(output) and has_content
    if not (is_new or finish_reason):
        return None
    is_first, request.cached_tokens_reported = not request.cached_tokens_reported, True
    return TokensEmitted(
        request_id=request.dispatch.request_id,
        client=request.dispatch.client,
        attempt=request.dispatch.attempt,
        choice=choice.number,
        index=output.index,
        token_ids=output.token_ids,
        text_sent=choice.text_length,
        finish_reason=finish_reason,
        cached_tokens=request.cached_tokens if is_first else None,
    )


def finished_event(request: ActiveRequest) -> RequestCompleted:
    return RequestCompleted(
        request_id=request.dispatch.request_id,
        client=request.dispatch.client,
        attempt=request.dispatch.attempt,
    )


def failed_event(
    request: ActiveRequest, error: ErrorDetails, *, terminal_sent: bool, suspect: bool = False
) -> AttemptFailed:
    """Return the event of a failed attempt; without `terminal_sent` the leader gets the request
    back and dispatches it again."""
    return AttemptFailed(
        request_id=request.dispatch.request_id,
        client=request.dispatch.client,
        attempt=request.dispatch.attempt,
        code=error.code,
        message=error.message,
        retry_after_ms=error.retry_after_ms,
        terminal_sent=terminal_sent,
        suspect=suspect,
    )
