"""The spans of a request in the leader, by value: its waits, its attempts and its end."""

from typing import Any

import orjson
import pytest

from controller.requests.events import (
    EndRequests,
    LinkRestored,
    RequestsTransferred,
    ShutdownBegan,
)
from controller.requests.instructions import RecordSpans, SendDispatches
from controller.requests.request import TrackedRequest
from controller.requests.request_trace import RequestTrace
from controller.requests.restored_request import transferred_request
from shared.ids import WorkerId
from shared.messages.dispatch import Dispatch
from shared.messages.stream import ErrorDetails
from shared.messages.trace import derived_span_id
from shared.telemetry import Span, SpanStart
from tests.controller.requests.claimed import key_of, old_dispatch, sent_before
from tests.controller.requests.driven import FULL, Driven
from tests.controller.requests.wire import Sent
from tests.controller.values import DEMO

TRACE, OWN, CLIENTS = "a" * 32, "b" * 16, "c" * 16
START = SpanStart(TRACE, OWN, True, CLIENTS, "x=1")


def ask(driven: Driven, start: SpanStart = START, **fields: Any) -> TrackedRequest:
    return driven.ask_traced(start, **fields)


def run(driven: Driven, **fields: Any) -> Sent:
    ask(driven, **fields)
    driven.pass_time(0.01)
    sent = driven.next_sent()
    driven.accept(sent)
    return sent


def spans(driven: Driven) -> list[Span]:
    return [span for each in driven.said_as(RecordSpans) for span in each.spans]


def named(driven: Driven, name: str) -> list[Span]:
    return [span for span in spans(driven) if span.name == name]


def check(driven: Driven, began_at: float) -> None:
    """Waits and attempts follow each other without a gap, from the start to the end."""
    (whole,) = named(driven, "request")
    phases = [span for span in spans(driven) if span.name in ("waiting", "attempt")]
    assert [span.parent_id for span in phases] == [whole.span_id] * len(phases)
    starts = [began_at, *(span.ended_at for span in phases)]
    assert starts == [*(span.started_at for span in phases), whole.ended_at]
    assert whole.started_at == began_at
    assert len({span.span_id for span in spans(driven)}) == len(spans(driven))


def test_a_request_that_is_served_at_once_has_an_attempt_and_no_wait() -> None:
    driven = Driven("w1")
    began_at = driven.now
    sent = run(driven, session_id="s")
    driven.emit(sent, 0, 1, 2)
    driven.pass_time(2)
    driven.finish(sent)
    assert [span.name for span in spans(driven)] == ["dispatch", "attempt", "request"]
    dispatch, attempt, whole = spans(driven)
    check(driven, began_at)
    assert (whole.parent_id, whole.has_remote_parent, whole.kind) == (CLIENTS, True, "consumer")
    assert (dispatch.parent_id, dispatch.ended_at) == (attempt.span_id, began_at + 0.01)
    assert {span.tracestate for span in spans(driven)} == {"x=1"}
    assert {span.error for span in spans(driven)} == {None}
    assert whole.attributes == {
        "mlx.request_id": "r", "mlx.client": "ada", "mlx.skill": "chat", "mlx.outcome": "ok",
        "mlx.failed_attempts": 0, "gen_ai.provider.name": "mlx", "gen_ai.request.model": "demo",
        "gen_ai.operation.name": "text_completion", "gen_ai.response.model": "demo",
        "gen_ai.conversation.id": "s", "gen_ai.usage.output_tokens": 2,
    }  # fmt: skip


def test_the_worker_is_told_where_its_spans_belong() -> None:
    driven = Driven("w1")
    sent = run(driven)
    trace = sent.dispatch.trace
    assert trace is not None
    assert trace.traceparent == f"00-{TRACE}-{OWN}-01"
    assert (trace.parent_id, trace.tracestate, trace.since_ms) == (CLIENTS, "x=1", 0.0)
    driven.finish(sent)
    (attempt,) = named(driven, "attempt")
    assert trace.attempt_id(1) == attempt.span_id == derived_span_id(OWN, "1")


@pytest.mark.parametrize("start", [None, SpanStart(TRACE, OWN, False, CLIENTS)])
def test_without_a_sampled_trace_nothing_is_told_or_recorded(start: SpanStart | None) -> None:
    driven = Driven("w1")
    driven.ask() if start is None else ask(driven, start)
    driven.pass_time(0.01)
    (sent,) = driven.said_as(SendDispatches)
    assert "trace" not in orjson.loads(sent.payload)["dispatches"][0]
    driven.accept(driven.next_sent())
    assert spans(driven) == []


def test_a_failed_attempt_has_its_error_and_the_next_one_links_to_it() -> None:
    driven = Driven("w1", "w2", retry={"initial_delay_ms": 500, "jitter": 0})
    began_at = driven.now
    sent = run(driven)
    driven.emit(sent, 0, 1)
    driven.pass_time(1)
    driven.leave(sent.worker)
    driven.pass_time(0.01)
    again = driven.next_sent()
    driven.accept(again)
    driven.finish(again)
    check(driven, began_at)
    first, second = named(driven, "attempt")
    assert (first.error, first.linked_ids) == ("worker_lost", ())
    assert (second.error, second.linked_ids) == (None, (first.span_id,))
    assert [span.attributes["mlx.worker"] for span in (first, second)] == [
        sent.worker, again.worker,
    ]  # fmt: skip
    assert [span.attributes["mlx.attempt"] for span in (first, second)] == [1, 2]
    (whole,) = named(driven, "request")
    assert (whole.error, whole.attributes["mlx.failed_attempts"]) == (None, 1)


def test_a_requeued_request_waits_for_its_next_attempt() -> None:
    driven = Driven("w1", "w2", retry={"initial_delay_ms": 500, "jitter": 0})
    began_at = driven.now
    driven.requeue(run(driven), "engine_crashed")
    driven.pass_time(0.6)
    again = driven.next_sent()
    driven.accept(again)
    driven.finish(again)
    check(driven, began_at)
    (wait,) = named(driven, "waiting")
    assert wait.attributes == {"mlx.waiting.reason": "retry"}
    first, second = named(driven, "attempt")
    assert (first.error, second.linked_ids) == ("engine_crashed", (first.span_id,))


def test_a_rejected_offer_is_an_attempt_that_nothing_links_to() -> None:
    driven = Driven("w1", "w2")
    began_at = driven.now
    ask(driven)
    driven.pass_time(0.01)
    driven.reject(driven.next_sent())
    driven.pass_time(0.01)
    sent = driven.next_sent()
    driven.accept(sent)
    driven.finish(sent)
    check(driven, began_at)
    first, second = named(driven, "attempt")
    assert (first.error, second.error, second.linked_ids) == ("queue_full", None, ())
    assert [span.parent_id for span in named(driven, "dispatch")] == [second.span_id]


def test_a_wait_for_capacity_says_why() -> None:
    driven = Driven("w1")
    began_at = driven.now
    driven.hear("w1", **FULL)
    ask(driven)
    driven.pass_time(1)
    driven.hear("w1")
    driven.pass_time(0.1)
    sent = driven.next_sent()
    driven.accept(sent)
    driven.finish(sent)
    check(driven, began_at)
    (wait,) = named(driven, "waiting")
    assert wait.attributes == {"mlx.waiting.reason": "queue_full"}
    assert wait.ended_at - wait.started_at == pytest.approx(1, abs=0.1)


def test_a_request_that_fails_while_it_waits_has_the_error() -> None:
    driven = Driven("w1")
    driven.hear("w1", **FULL)
    ask(driven)
    driven.pass_time(1)
    driven.on(EndRequests(None, ErrorDetails.of("draining", "it shut down")))
    (whole,) = named(driven, "request")
    assert (whole.error, whole.attributes["mlx.outcome"]) == ("draining", "draining")
    assert named(driven, "attempt") == []


def test_a_cancelled_request_has_no_error() -> None:
    driven = Driven("w1")
    sent = run(driven)
    driven.cancel()
    driven.finish(sent)
    (whole,) = named(driven, "request")
    assert (whole.error, whole.attributes["mlx.outcome"]) == (None, "cancelled")
    assert [span.error for span in named(driven, "attempt")] == [None]


def test_what_is_published_again_stays_in_its_trace() -> None:
    driven = Driven("w1")
    sent = run(driven)
    ask(driven, SpanStart(TRACE, "d" * 16, True, CLIENTS))
    driven.finish(sent)
    assert [span.span_id for span in named(driven, "request")] == [OWN]


def _lose(driven: Driven) -> None:
    """Its worker does not know it any more."""
    run(driven)
    driven.pass_time(2)
    driven.on(LinkRestored())
    driven.claimed("w1")


def test_what_is_lost_and_published_again_is_the_same_request() -> None:
    driven = Driven("w1")
    began_at = driven.now
    _lose(driven)
    ask(driven, SpanStart(TRACE, "d" * 16, True, CLIENTS))
    driven.pass_time(0.01)
    sent = driven.next_sent()
    driven.accept(sent)
    driven.finish(sent)
    check(driven, began_at)
    assert [span.span_id for span in named(driven, "request")] == [OWN]
    assert [span.error for span in named(driven, "attempt")] == [None, None]


def test_what_is_lost_for_good_says_so() -> None:
    driven = Driven("w1")
    _lose(driven)
    driven.pass_time(10)
    (lost,) = named(driven, "request")
    assert (lost.error, lost.attributes["mlx.outcome"]) == (None, "lost")


def test_the_next_leader_has_the_spans_of_the_last_one() -> None:
    """The last one died before the request ended."""
    before = Driven("w1")
    began_at = before.now
    before.hear("w1", **FULL)
    ask(before)
    before.pass_time(1)
    before.hear("w1")
    before.pass_time(0.1)
    sent = before.next_sent()
    before.accept(sent)
    had = sent.dispatch.model_copy(update={"elapsed_ms": 7000.0})
    driven = Driven(term=2, unclaimed=["w1"])
    driven.claimed("w1", key_of(had))
    (asked,) = driven.given()
    driven.answer(asked, driven.reply("w1", contents=[had]))
    adopted_at = driven.now
    driven.pass_time(0.5)
    driven.join("w2")
    driven.leave("w1")
    driven.pass_time(1)
    again = driven.next_sent()
    assert again.dispatch.trace is not None
    assert again.dispatch.trace.traceparent == f"00-{TRACE}-{OWN}-01"
    driven.accept(again)
    driven.finish(again)
    (whole,) = named(driven, "request")
    assert (whole.span_id, whole.parent_id) == (OWN, CLIENTS)
    assert whole.started_at == pytest.approx(adopted_at - 7)
    first, second = named(driven, "attempt")
    assert first.span_id == derived_span_id(OWN, str(sent.dispatch.attempt))
    (wait,) = [span for span in spans(before) if span.name == "waiting"]
    waited_s = wait.ended_at - began_at
    assert first.started_at == pytest.approx(whole.started_at + waited_s, abs=0.001)
    assert (first.error, second.linked_ids) == ("worker_lost", (first.span_id,))


def test_a_transferred_request_stays_in_its_trace_and_waits_on() -> None:
    before = Driven("w1")
    before.hear("w1", **FULL)
    ask(before)
    before.pass_time(2)
    before.on(ShutdownBegan())
    (sent,) = before.machine.transferable(before.now)
    sent = Dispatch.model_validate_json(sent.model_dump_json(exclude_none=True))
    driven = Driven("w2", term=2)
    driven.on(RequestsTransferred([transferred_request(sent, [DEMO], driven.now)]))
    arrived_at = driven.now
    driven.pass_time(0.01)
    taken = driven.next_sent()
    driven.accept(taken)
    driven.finish(taken)
    check(driven, arrived_at - 2)
    (whole,) = named(driven, "request")
    (wait,) = named(driven, "waiting")
    assert (whole.span_id, whole.parent_id, wait.started_at) == (OWN, CLIENTS, arrived_at - 2)


def test_what_was_adopted_untraced_stays_so() -> None:
    had = old_dispatch("r", 3, 1, 2)
    driven = Driven(term=2, unclaimed=["w1"])
    driven.claimed("w1", key_of(had))
    (asked,) = driven.given()
    driven.answer(asked, driven.reply("w1", contents=[had]))
    driven.finish(sent_before(had))
    assert spans(driven) == []


def test_parts_of_a_list_have_spans_below_the_list() -> None:
    trace = RequestTrace.begun(START, 1.0)
    assert trace is not None
    part = trace.part("part-1", 2.0)
    part.offered(1, WorkerId("w1"), DEMO, "dispatching", 2.0)
    part.ended({}, "", 3.0, "")
    attempt, whole = part.take()
    assert (whole.parent_id, whole.kind, whole.has_remote_parent) == (OWN, "internal", False)
    assert (whole.trace_id, attempt.parent_id) == (TRACE, whole.span_id)
    assert part.take() == []
