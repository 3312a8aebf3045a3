"""What the leader knows of one request: what is sent of it, said of it, and done with it."""

from typing import Any

import pytest

from controller.fleet.placement import RequestPlacement
from controller.fleet.worker_view import WorkerView
from controller.requests.client_messages import (
    cancellation,
    failure,
    state_name,
    waiting_status,
)
from controller.requests.request import TrackedRequest
from controller.requests.restored_request import claimed_request, transferred_request
from controller.routing import RouteQuery, policy_named, select_worker
from shared.codec import decode
from shared.ids import BootId, ClientName, ModelId, RequestId, WorkerId
from shared.messages.control import ClaimedRequest
from shared.messages.conversation import Message
from shared.messages.dispatch import MAX_INBOXES, Continuation, Dispatch
from shared.messages.request_events import TokensEmitted
from shared.messages.stream import ErrorDetails
from tests.controller.fleet.views import Kept, Views
from tests.controller.values import ADA, CHAT, DEMO, request, view

MAC, BOOT = WorkerId("mac"), BootId("b1")
HELLO = {"role": "user", "content": "Hello"}
LOST = ErrorDetails.of("worker_lost", "it is gone")


def offered(one: TrackedRequest, worker: str = "mac", *, now: float = 0.0) -> WorkerView:
    """To a worker that is asked to take it."""
    asked = view(worker)
    decision = select_worker(
        RouteQuery([DEMO]), Views([asked]), Kept(), policy_named("prefix-aware"),
        now=now, rng=lambda: 0.5,
    )  # fmt: skip
    one.offer(decision, RequestPlacement(asked, 10.0, now, choices=one.contents.choices))
    return asked


def running(one: TrackedRequest, *, now: float = 0.0) -> TrackedRequest:
    offered(one, now=now)
    one.run(BOOT, now)
    return one


def emitted(index: int, *token_ids: int, choice: int = 0, **fields: Any) -> TokensEmitted:
    return TokensEmitted(
        request_id=RequestId("r"), client=ADA, attempt=1, choice=choice, index=index,
        token_ids=list(token_ids), text_sent=0, **fields,
    )  # fmt: skip


def sent(one: TrackedRequest, now: float = 0.0) -> Dispatch:
    return decode(Dispatch, one.dispatch_json(now))


# What a worker is sent.


def test_attempts_are_counted_and_carry_what_was_fixed_at_acceptance() -> None:
    one = request(now=10.0)
    offered(one)
    first = sent(one, 10.5)
    one.detach("other", 10.5)
    offered(one, "other")
    second = sent(one, 12.0)
    assert [(each.attempt, each.elapsed_ms) for each in (first, second)] == [(1, 500), (2, 2000)]
    assert first.seed == second.seed == 5
    assert (second.inboxes, second.model, second.client) == (["_INBOX.x"], DEMO, ADA)
    assert second.request == one.contents and second.resume is None
    assert (one.state, one.worker, one.boot_id) == ("offered", "other", "b1")


def test_what_its_client_wrote_is_sent_as_it_is() -> None:
    body = b'{"prompt": "x",  "temperature": 0.50}'
    one = request(temperature=0.5)
    one.payload = body
    offered(one)
    assert body in one.dispatch_json(0.0)
    assert sent(one).body_fingerprint == one.fingerprint


def test_with_what_was_said_before_it_is_sent_whole_and_stays_the_same_request() -> None:
    one = request(prompt=None, messages=[HELLO], session_id="s")
    one.payload = b'{"messages": [{"role": "user", "content": "Hello"}], "session_id": "s"}'
    one.history = [Message(role="user", content="Who are you?")]
    offered(one)
    dispatch = sent(one)
    messages = dispatch.request.messages or []
    assert [message.content for message in messages] == ["Who are you?", "Hello"]
    assert dispatch.request.fingerprint() != one.fingerprint == dispatch.body_fingerprint


def test_time_before_this_leader_counts() -> None:
    one = request(timeout_ms=6000)
    one.elapsed_before_ms = 5000
    offered(one)
    assert (sent(one, 0.5).elapsed_ms, one.deadline) == (5500, 1.0)


def test_another_attempt_goes_on_from_what_was_emitted() -> None:
    one = running(request(n=2), now=1.0)
    one.record_tokens(emitted(0, 1, 2, cached_tokens=3), 1.25)
    one.record_tokens(emitted(0, 9, choice=1, finish_reason="stop"), 1.5)
    one.give_up_attempt(LOST, 2.0)
    offered(one, "other")
    dispatch = sent(one, 2.0)
    assert dispatch.resume == Continuation(
        token_ids={0: [1, 2], 1: [9]},
        text_sent={0: 0, 1: 0},
        finish_reasons={1: "stop"},
        first_token_ms=1250.0,
        cached_tokens=3,
    )
    assert (dispatch.attempt, dispatch.retries, dispatch.migrations) == (2, 1, 1)


# Attempts that fail.


def test_who_failed_is_avoided_and_who_had_begun_goes_on_with_the_same_model() -> None:
    one = request()
    one.models = [ModelId("best"), DEMO]
    running(one).give_up_attempt(LOST, 1.0)
    failures = one.failures
    assert (failures.count, failures.migrations, failures.workers) == (1, 0, {"mac"})
    assert (one.worker, one.boot_id, one.failover, one.models) == (None, None, None, ["best", DEMO])
    running(one, now=2.0).record_tokens(emitted(0, 1), 2.0)
    one.give_up_attempt(LOST, 3.0)
    assert (failures.count, failures.migrations, one.models) == (2, 1, [DEMO])
    assert (one.failover, failures.last_error) == (("mac", 3.0), LOST)


def test_a_worker_that_is_asked_counts_it_until_it_ends_there() -> None:
    one = request(n=2)
    mac = offered(one)
    assert (mac.load, mac.choices, mac.unreported_ms) == (1, 2, 10.0)
    one.run(BOOT, 0.0)
    one.record_tokens(emitted(0, 1), 1.0)
    assert (mac.load, mac.unreported_ms) == (1, 0.0)
    one.finish(succeeded=True, code="", now=2.0)
    assert (mac.load, mac.choices) == (0, 0)


def test_once_a_worker_has_it_the_search_begins_anew() -> None:
    one = request()
    offered(one)
    one.waiting_since = 0.5
    one.run(BOOT, 1.0)
    assert one.state == "running" and not one.rejected
    assert one.waiting_since is None and one.reported_at == 1.0


# Who listens.


def test_of_too_many_listeners_the_oldest_goes_and_none_is_there_twice() -> None:
    one = request()
    for number in range(MAX_INBOXES):
        for _ in range(2):
            one.add_inboxes([f"_INBOX.{number}"])
    assert one.inboxes == [f"_INBOX.{number}" for number in range(MAX_INBOXES)]


# What is said of it.


def test_its_messages_tell_how_it_stands() -> None:
    one = request(n=2)
    waiting = waiting_status(one)
    assert (waiting.status, waiting.worker, waiting.reason) == ("queued", None, "dispatching")
    running(one).record_tokens(emitted(0, 1), 0.0)
    assert (waiting_status(one).status, waiting_status(one).reason) == ("migrating", None)
    failed = failure(one, LOST)
    assert (failed.attempt, failed.worker, failed.error.code) == (1, "mac", "worker_lost")


def test_a_cancelled_request_that_no_worker_had_ends_every_choice() -> None:
    message = cancellation(request(n=2), 0.25)
    assert [output.finish_reason for output in message.outputs] == ["cancelled"] * 2
    assert [output.choice for output in message.outputs] == [0, 1]
    assert (message.usage.completion_tokens, message.timings.queue_ms) == (0, 250.0)


def test_clients_are_told_its_state_in_their_words() -> None:
    one, words = request(), []
    for step in (
        lambda: None,
        lambda: offered(one),
        lambda: one.run(BOOT, 0.0),
        lambda: one.finish(succeeded=True, code="", now=0.0),
    ):
        step()
        words.append(state_name(one))
    assert words == ["accepted", "dispatching", "running", "finished"]


def test_it_runs_in_one_boot_of_a_worker_until_it_ends() -> None:
    one = request()
    offered(one)
    assert not one.runs_in(MAC, BOOT)
    one.run(BOOT, 0.0)
    assert one.runs_in(MAC, BOOT) and not one.runs_in(MAC, BootId("b2"))
    one.finish(succeeded=True, code="", now=0.0)
    assert one.ended and not one.runs_in(MAC, BOOT)


@pytest.mark.parametrize(("well", "state"), [(True, "finished"), (False, "failed")])
def test_of_what_ended_what_is_left_tells_it_from_others(well: bool, state: str) -> None:
    one, same, other = (request(prompt=text, n=2) for text in ("long", "long", "another"))
    running(one).record_tokens(emitted(0, 1, 2), 0.0)
    one.record_tokens(emitted(0, 3, choice=1), 0.0)
    one.finish(succeeded=well, code="", now=1.0)
    one.forget_contents()
    assert (one.request, one.payload, one.history, one.started) == (None, None, [], False)
    assert (one.tokens, state_name(one), one.ended_at) == (3, state, 1.0)
    assert one.fingerprint == same.fingerprint != other.fingerprint


# As others tell of it.


def _told(**fields: Any) -> ClaimedRequest:
    values = {
        "client": ADA, "request_id": "r", "attempt": 3, "state": "running", "skill": CHAT,
        "model": DEMO, "fingerprint": "f", "session_id": "s", "tokens": 7, "retries": 2,
        "migrations": 1, "crashes": 1,
    }  # fmt: skip
    return ClaimedRequest.model_validate({**values, **fields})


def test_what_a_worker_claims_is_known_without_its_contents() -> None:
    one = claimed_request(_told(), MAC, BOOT, 4.0)
    assert one.runs_in(MAC, BOOT) and one.request is None
    assert (one.attempt, one.fingerprint, one.session, one.tokens) == (3, "f", (ADA, "s"), 7)
    failures = one.failures
    assert (failures.count, failures.migrations, failures.crashes) == (2, 1, 1)
    assert one.reported_at == one.updated_at == 4.0


def test_the_contents_that_a_worker_tells_are_all_that_it_takes_to_go_on() -> None:
    original = running(request(session_id="s", timeout_ms=60_000))
    original.record_tokens(emitted(0, 1, 2), 0.5)
    told = original.transfer(2.0)
    one = claimed_request(_told(attempt=1, session_id="s"), MAC, BOOT, 10.0)
    one.set_contents(told, [DEMO], 10.0)
    assert (one.contents, one.seed, one.inboxes) == (told.request, 5, ["_INBOX.x"])
    assert (one.progress.tokens, one.affinity) == ({0: [1, 2]}, (ADA, "s"))
    assert one.deadline == 68.0  # two of its sixty seconds were over
    assert sent(one, 10.0).resume == told.resume


def test_what_no_worker_has_goes_to_the_next_leader_as_it_is() -> None:
    one = request(session_id="s", stream=False, now=1.0)
    running(one).record_tokens(emitted(0, 1), 1.5)
    one.give_up_attempt(LOST, 2.0)
    carried = transferred_request(one.transfer(3.0), [DEMO], 50.0)
    assert (carried.key, carried.state, carried.attempt) == (one.key, "waiting", 1)
    assert (carried.fingerprint, carried.seed) == (one.fingerprint, one.seed)
    assert (carried.session, carried.affinity) == ((ADA, "s"), (ADA, "s"))
    failures = carried.failures
    assert (failures.count, failures.migrations, carried.started) == (1, 1, True)
    assert carried.elapsed_ms(50.0) == 2000 and carried.inboxes == one.inboxes
    assert carried.contents.request_id == "r"


def test_requests_of_different_clients_are_different_ones() -> None:
    one, other = request(), request()
    other.client = ClientName("bob")
    assert one.key != other.key and one != other
