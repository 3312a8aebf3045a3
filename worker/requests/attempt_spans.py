"""The spans of an attempt on this worker, made when it ends: queue, prefill, decode and publish."""

import time

from shared.messages.stream import DoneMessage
from shared.messages.trace import derived_span_id
from shared.telemetry import Span, SpanEvent, gen_ai
from shared.telemetry.span import Attributes, AttributeValue
from worker.requests.active_request import ActiveRequest


def attempt_spans(request: ActiveRequest, code: str | None = None) -> list[Span]:
    """Return the spans until the engine's last output; none if the request is not traced.

    Args:
        code: of the error with which the attempt failed.
    """
    now = request.ended_at if request.end is not None else time.monotonic()
    times = request.times
    admitted_at, first_at = times.admitted_at, times.first_token_at
    events = request.trace_events or []
    queue_end = now if admitted_at is None else admitted_at
    prefill_end = now if first_at is None else first_at
    first_code = code if admitted_at is None else None
    spans = [_span(request, "queue", times.received_at, queue_end, {}, error=first_code)]
    if admitted_at is not None:
        before = [event for event in events if event.at <= prefill_end]
        second_code = code if first_at is None else None
        attributes = _prompt_attributes(request)
        spans.append(
            _span(request, "prefill", admitted_at, prefill_end, attributes, before, second_code)
        )
    if first_at is not None:
        after = [event for event in events if event.at > first_at]
        attributes = _answer_attributes(request)
        spans.append(_span(request, "decode", first_at, now, attributes, after, code))
    return [span for span in spans if span is not None]


def publish_span(request: ActiveRequest) -> list[Span]:
    """Return the span from the end of an answer until its last message was given to NATS; none if
    the request is not traced."""
    span = _span(request, "publish", request.ended_at, time.monotonic(), {})
    return [span] if span is not None else []


def _span(
    request: ActiveRequest,
    name: str,
    started_at: float,
    ended_at: float,
    attributes: Attributes,
    events: list[SpanEvent] | None = None,
    error: str | None = None,
) -> Span | None:
    trace = request.dispatch.trace
    if trace is None:
        return None
    attempt_id = trace.attempt_id(request.dispatch.attempt)
    return Span(
        name,
        trace.trace_id,
        derived_span_id(attempt_id, name),
        attempt_id,
        started_at,
        ended_at,
        {"mlx.worker": request.worker, "mlx.attempt": request.dispatch.attempt, **attributes},
        error=error,
        events=events or (),
        tracestate=trace.tracestate or "",
    )


def _model_attributes(request: ActiveRequest) -> dict[str, AttributeValue]:
    body = request.dispatch.request
    fields = {
        "count_only": body.count_only,
        "input": body.input,
        "query": body.query,
        "messages": body.messages,
    }
    return {
        gen_ai.OPERATION: gen_ai.operation_name(fields),
        gen_ai.PROVIDER: gen_ai.PROVIDER_NAME,
        gen_ai.REQUEST_MODEL: body.model or request.model,
    }


def _prompt_attributes(request: ActiveRequest) -> dict[str, AttributeValue]:
    return {
        **_model_attributes(request),
        gen_ai.INPUT_TOKENS: sum(prompt.tokens for prompt in request.prompts),
        gen_ai.CACHED_TOKENS: sum(prompt.cached_tokens for prompt in request.prompts),
    }


def _answer_attributes(request: ActiveRequest) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        **_model_attributes(request),
        gen_ai.RESPONSE_MODEL: request.model,
        gen_ai.OUTPUT_TOKENS: request.tokens,
    }
    if isinstance(request.end, DoneMessage):
        attributes[gen_ai.FINISH_REASONS] = [
            choice.finish_reason for choice in request.choices if choice.finish_reason is not None
        ]
    return attributes
