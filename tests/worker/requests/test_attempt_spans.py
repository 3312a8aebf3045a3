"""The spans of an attempt on a worker, by value."""

import itertools
import time
from typing import Any

import pytest

from shared.messages.stream import DoneMessage, ErrorDetails, Timings, Usage
from shared.messages.trace import TraceContext, derived_span_id
from shared.telemetry import Span
from shared.telemetry.gen_ai import operation_name
from tests.worker.values import dispatched
from worker.requests.active_request import ActiveRequest
from worker.requests.attempt_spans import attempt_spans, publish_span

OWN = "b" * 16
TRACE = TraceContext(traceparent=f"00-{'a' * 32}-{OWN}-01", tracestate="x=1")
ATTEMPT = derived_span_id(OWN, "1")


def traced(trace: TraceContext | None = TRACE, **fields: Any) -> ActiveRequest:
    """At attempt 1."""
    dispatch = dispatched("r", **fields).model_copy(update={"attempt": 1, "trace": trace})
    return ActiveRequest(dispatch, "c1", "mac", [1], traced=trace is not None)  # type: ignore[arg-type]


def names(spans: list[Span]) -> list[str]:
    return [span.name for span in spans]


def finish(request: ActiveRequest) -> None:
    request.choices[0].finish_reason = "stop"
    request.end = DoneMessage(
        request.dispatch.request_id, 1, request.worker, Usage(5, 0, 2), Timings(0, 0, 0, 0)
    )
    request.ended_at = time.monotonic()


def test_an_answer_has_a_span_for_each_stage_one_after_the_other() -> None:
    request = traced()
    request.admit(0)
    request.start_choice(request.choices[0], 600)
    request.advance_prompt(request.choices[0], 512, 600)
    request.times.first_token_at = time.monotonic()
    request.preempt()
    finish(request)
    spans = [*attempt_spans(request), *publish_span(request)]
    assert names(spans) == ["queue", "prefill", "decode", "publish"]
    assert spans[0].started_at == request.times.received_at
    for before, after in itertools.pairwise(spans):
        assert before.ended_at == after.started_at
    assert {(span.trace_id, span.parent_id, span.tracestate) for span in spans} == {
        ("a" * 32, ATTEMPT, "x=1")
    }
    assert {span.error for span in spans} == {None}
    queue, prefill, decode, _ = spans
    assert [(event.name, dict(event.attributes)) for event in prefill.events] == [
        ("prefill chunk", {"mlx.prefill.done": 512, "mlx.prefill.total": 600})
    ]
    assert [event.name for event in decode.events] == ["preempted"]
    assert prefill.attributes["gen_ai.usage.input_tokens"] == 600
    assert decode.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert queue.attributes == {"mlx.worker": "mac", "mlx.attempt": 1}


def test_the_stage_in_which_an_attempt_failed_has_the_error() -> None:
    queued = traced()
    assert [(span.name, span.error) for span in attempt_spans(queued, "queue_full")] == [
        ("queue", "queue_full")
    ]
    prefilled = traced()
    prefilled.admit(0)
    assert [(span.name, span.error) for span in attempt_spans(prefilled, "engine_crashed")] == [
        ("queue", None), ("prefill", "engine_crashed"),
    ]  # fmt: skip
    decoded = traced()
    decoded.admit(0)
    decoded.times.first_token_at = time.monotonic()
    decoded.fail(ErrorDetails.of("deadline_exceeded", "late"))
    found = attempt_spans(decoded, "deadline_exceeded")
    assert [span.error for span in found] == [None, None, "deadline_exceeded"]
    assert "gen_ai.response.finish_reasons" not in found[-1].attributes


def test_an_untraced_request_has_no_spans_and_notes_no_events() -> None:
    request = traced(None)
    request.admit(0)
    request.advance_prompt(request.choices[0], 512, 600)
    finish(request)
    assert request.trace_events is None
    assert attempt_spans(request) == publish_span(request) == []


def test_a_very_long_prompt_has_a_bounded_number_of_events() -> None:
    request = traced()
    request.admit(0)
    for done in range(1000):
        request.advance_prompt(request.choices[0], done, 1000)
    assert len(attempt_spans(request)[1].events) == 128


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"messages": []}, "chat"), ({"prompt": "x"}, "text_completion"),
        ({"input": "x"}, "embeddings"), ({"input": ["x"], "query": "y"}, "rerank"),
        ({"messages": [], "count_only": True}, "count_tokens"),
    ],
)  # fmt: skip
def test_an_operation_has_the_name_of_the_conventions(fields: dict[str, Any], name: str) -> None:
    assert operation_name(fields) == name
