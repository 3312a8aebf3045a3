"""A request from acceptance to its end, and the ledger that keeps it."""

import pytest

from controller.ledger import KEPT_AFTER_END_S, Ledger
from shared.ids import BootId, ClientName, ControllerId, RequestId, WorkerId
from shared.messages.events import TokensEmitted
from shared.messages.stream import Done, StreamError
from tests.controller.values import ADA, DEMO, owned

MAC, BOOT = WorkerId("mac"), BootId("b1")


def emitted(index: int, *token_ids: int, choice: int = 0) -> TokensEmitted:
    return TokensEmitted(
        request_id=RequestId("r"), client=ADA, attempt=0, choice=choice, index=index,
        token_ids=list(token_ids), text_sent=0,
    )  # fmt: skip


def test_attempts_are_counted_from_zero_and_carry_what_was_fixed_at_acceptance() -> None:
    request = owned()
    first = request.begin_attempt(MAC, BOOT, DEMO)
    second = request.begin_attempt(WorkerId("other"), BOOT, DEMO)
    assert (first.attempt, second.attempt) == (0, 1)
    assert (first.seed, second.seed) == (5, 5)
    assert (second.inboxes[0], second.model, second.client) == ("_INBOX.x", "demo", "ada")
    assert 0 <= first.elapsed_ms <= second.elapsed_ms
    assert (request.state, request.worker, request.ended) == ("dispatching", "other", False)


def test_time_before_this_controller_counts() -> None:
    request = owned()
    request.elapsed_before_ms = 5000
    assert request.begin_attempt(MAC, BOOT, DEMO).elapsed_ms >= 5000


@pytest.mark.parametrize(
    ("events", "tokens"),
    [
        ([emitted(0, 1, 2), emitted(2, 3)], {0: [1, 2, 3]}),
        ([emitted(0, 1, 2), emitted(0, 1, 2)], {0: [1, 2]}),
        ([emitted(0, 1, 2), emitted(1, 2, 3)], {0: [1, 2, 3]}),
        ([emitted(0, 1), emitted(0, 9, choice=1), emitted(1, 2)], {0: [1, 2], 1: [9]}),
    ],
)
def test_emitted_tokens_are_kept_once_each(
    events: list[TokensEmitted], tokens: dict[int, list[int]]
) -> None:
    request = owned()
    for event in events:
        request.note_tokens(event)
    assert request.tokens == tokens
    assert request.state_message(ControllerId("c")).tokens == sum(map(len, tokens.values()))


def test_tokens_after_a_gap_are_not_taken_for_those_that_are_missing() -> None:
    request = owned()
    request.note_tokens(emitted(0, 1))
    request.note_tokens(emitted(2, 3))
    assert request.tokens[0] != [1, 3]


def test_its_messages_tell_how_it_stands() -> None:
    request = owned(n=2)
    accepted, waiting = request.accepted_message(), request.waiting_message()
    assert (accepted.status, accepted.seed, accepted.attempt) == ("accepted", 5, 0)
    assert (waiting.status, waiting.worker) == ("queued", None)
    request.begin_attempt(MAC, BOOT, DEMO)
    request.begin_attempt(MAC, BOOT, DEMO)
    failed = request.failed_message(StreamError("worker_lost", "gone"))
    assert (failed.attempt, failed.worker, failed.error.code) == (1, "mac", "worker_lost")
    state = request.state_message(ControllerId("c"))
    assert (state.state, state.attempt, state.controller) == ("dispatching", 1, "c")


def test_a_cancelled_request_that_no_worker_had_ends_every_choice() -> None:
    message = owned(n=2).cancelled_message()
    assert isinstance(message, Done)
    assert [output.finish_reason for output in message.outputs] == ["cancelled"] * 2
    assert [output.choice for output in message.outputs] == [0, 1]
    assert message.usage.completion_tokens == 0


def test_the_ledger_finds_requests_by_client_and_id() -> None:
    ledger, request = Ledger(), owned()
    ledger.add(request)
    assert ledger.get((ADA, RequestId("r"))) is request
    assert ledger.get((ClientName("bob"), RequestId("r"))) is None


def test_the_ledger_knows_what_a_worker_serves() -> None:
    ledger = Ledger()
    running, ended, elsewhere, rebooted = (owned(name) for name in "abcd")
    for request in (running, ended, elsewhere, rebooted):
        ledger.add(request)
        request.begin_attempt(MAC, BOOT, DEMO)
    ended.finish("finished")
    elsewhere.begin_attempt(WorkerId("other"), BOOT, DEMO)
    rebooted.begin_attempt(MAC, BootId("b2"), DEMO)
    assert list(ledger.on_worker(MAC)) == [running, rebooted]
    assert ledger.active == [running, elsewhere, rebooted]


def test_what_left_its_worker_meanwhile_is_not_found_there() -> None:
    ledger = Ledger()
    requests = [owned(name) for name in "ab"]
    for request in requests:
        ledger.add(request)
        request.begin_attempt(MAC, BOOT, DEMO)
    found = iter(ledger.on_worker(MAC))
    assert next(found) is requests[0]
    requests[1].give_up_attempt(StreamError.of("queue_full", "no room"))
    assert list(found) == []


def test_ended_requests_are_remembered_for_a_while_and_running_ones_for_good() -> None:
    ledger, ended, running = Ledger(), owned("ended"), owned("running")
    ledger.add(ended)
    ledger.add(running)
    ended.finish("failed")
    assert ended.ended_at is not None
    ledger.forget_old(ended.ended_at + KEPT_AFTER_END_S)
    assert ledger.get(ended.key) is ended
    ledger.forget_old(ended.ended_at + KEPT_AFTER_END_S + 0.1)
    assert ledger.get(ended.key) is None
    assert ledger.get(running.key) is running


def test_of_an_ended_request_the_ledger_keeps_what_tells_it_from_others() -> None:
    ledger, request = Ledger(), owned(prompt="a long prompt", n=2)
    same, other = owned(prompt="a long prompt", n=2), owned(prompt="another", n=2)
    request.tokens = {0: [1, 2], 1: [3]}
    before = request.state_message(ControllerId("c"))
    ledger.add(request)
    for _ in ledger.active:
        assert request.request.prompt == "a long prompt"
    request.finish("finished")
    for now in (0.0, 1.0):
        ledger.forget_old(now)
        assert ledger.get(request.key) is request
        assert (request.request.prompt, request.tokens) == (None, {})
        assert (request.fingerprint, request.request.n) == (same.fingerprint, 2)
        assert request.fingerprint != other.fingerprint
        assert request.state_message(ControllerId("c")).tokens == before.tokens == 3
