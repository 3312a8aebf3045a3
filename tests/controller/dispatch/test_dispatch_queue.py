"""Dispatches on their way to workers, by value: held together, sent, answered, lost."""

import pytest

from controller.dispatch.dispatch_queue import DispatchOutcome
from shared.ids import BootId
from shared.messages.dispatch import Dispatch, DispatchRejection, DispatchReply, DispatchResult
from shared.settings.controller import DispatchSettings
from tests.controller.requests.driven_queue import BOOT, MAC, Queue
from tests.controller.values import request

NO_ROOM = DispatchRejection(code="queue_full", message="no room")


@pytest.fixture
def queue() -> Queue:
    return Queue()


def _said(answers: list[DispatchOutcome]) -> list[tuple[str, str | None, bool]]:
    """Of which requests, why not, and whether nobody knows."""
    return [
        (
            each.request.request_id,
            each.refusal.code if each.refusal is not None else None,
            each.unknown,
        )
        for each in answers
    ]


# Held.


def test_the_first_one_goes_at_once(queue: Queue) -> None:
    assert queue.offer("a") == ["a"]
    assert (len(queue.queue), queue.totals.dispatches, queue.totals.messages) == (1, 1, 1)


def test_those_that_come_soon_after_are_held_a_moment_together(queue: Queue) -> None:
    queue.busy()
    for name in "abc":
        assert queue.offer(name) == []
        queue.now += 0.0002
    assert len(queue.queue) == 4
    assert queue.pass_time(0.2) == []
    assert queue.pass_time(0.5) == ["a b c"]
    assert (queue.totals.dispatches, queue.totals.messages) == (4, 2)
    assert queue.pass_time(10) == []


def test_it_is_known_when_the_next_ones_go(queue: Queue) -> None:
    queue.busy()
    queue.offer("a")
    assert queue.queue.next_at == pytest.approx(0.00075)
    assert queue.pass_time(0.75) == ["a"]
    assert queue.queue.next_at == 1.0, "an answer is due"


def test_each_worker_and_each_model_has_a_message_of_its_own(queue: Queue) -> None:
    for worker, model in (("mac", "demo"), ("mac", "best"), ("studio", "demo")):
        queue.busy(worker, model)
    for name, worker, model in (
        ("a", "mac", "demo"), ("b", "mac", "best"), ("c", "studio", "demo"), ("d", "mac", "demo")
    ):  # fmt: skip
        queue.offer(name, worker, model)
    assert sorted(queue.pass_time(1)) == ["a d", "b", "c"]


def test_an_urgent_one_takes_all_that_is_held_with_it(queue: Queue) -> None:
    queue.busy()
    queue.offer("a", priority="low")
    assert queue.offer("b", priority="high") == ["a b"]


def test_a_message_has_no_more_than_a_worker_takes() -> None:
    queue = Queue(most=2)
    queue.busy()
    assert queue.offer("a") == []
    assert queue.offer("b") == ["a b"], "more is not worth waiting for"
    few = Queue(most=16, max_batch=3)
    few.busy()
    few.offer("a")
    few.offer("b")
    assert few.offer("c") == ["a b c"]


def test_a_worker_that_takes_one_at_a_time_gets_one_at_a_time() -> None:
    queue = Queue(most=0)
    assert [queue.offer(name) for name in "abc"] == [["a"], ["b"], ["c"]]


def test_a_message_has_no_more_bytes_than_one_may_have() -> None:
    queue = Queue(max_bytes=20_000)
    queue.busy()
    for name in "abcd":
        queue.offer(name, prompt="x" * 7000)
    assert queue.pass_time(1) == ["a b", "c d"]
    assert all(14_000 < size <= 20_000 for size in queue.sizes[1:])


def test_one_that_fills_a_message_goes_alone() -> None:
    queue = Queue(max_bytes=4000)
    queue.busy()
    queue.offer("a")
    queue.offer("b", prompt="x" * 5000)
    queue.offer("c")
    assert queue.pass_time(1) == ["a", "b", "c"]


# Withdrawn.


def test_one_that_is_held_still_may_be_withdrawn(queue: Queue) -> None:
    queue.busy()
    for name in "ab":
        queue.offer(name)
    assert queue.queue.withdraw(queue.requests["a"])
    assert not queue.queue.withdraw(queue.requests["a"])
    assert len(queue.queue) == 2
    assert queue.pass_time(1) == ["b"]


def test_where_all_are_withdrawn_nothing_is_sent(queue: Queue) -> None:
    queue.busy()
    queue.offer("a")
    assert queue.queue.withdraw(queue.requests["a"])
    assert queue.pass_time(5) == [] and len(queue.queue) == 1


def test_one_that_was_sent_cannot_be_withdrawn(queue: Queue) -> None:
    queue.busy()
    assert not queue.queue.withdraw(queue.requests["first"])
    assert not queue.queue.withdraw(request("stranger"))


# Answered.


def test_each_offer_of_a_message_has_its_answer(queue: Queue) -> None:
    queue.busy()
    for name in "ab":
        queue.offer(name)
    queue.pass_time(1)
    answers = queue.answer(2, None, NO_ROOM)
    assert _said(answers) == [("a", None, False), ("b", "queue_full", False)]
    assert [(each.attempt, each.boot_id) for each in answers] == [(1, "b1")] * 2
    assert len(queue.queue) == 1


def test_the_boot_that_answers_is_told(queue: Queue) -> None:
    queue.busy()
    assert queue.answer(1, None, boot="b2")[0].boot_id == "b2"


def test_a_second_answer_and_one_to_nothing_mean_nothing(queue: Queue) -> None:
    queue.busy()
    queue.answer(1, None)
    assert queue.answer(1, None) == []
    assert queue.queue.answered(99, None, queue.now) == []


@pytest.mark.parametrize("count", [0, 1, 3])
def test_of_an_answer_to_another_number_of_offers_nobody_knows_what_it_means(
    queue: Queue, count: int
) -> None:
    queue.busy()
    for name in "ab":
        queue.offer(name)
    queue.pass_time(1)
    result = queue.messages[1].dispatches[0]
    results = [_result(result)] * count
    code = "internal_error"
    assert _said(queue.reply(2, results)) == [("a", code, True), ("b", code, True)]
    assert len(queue.queue) == 1


def test_a_worker_that_cannot_read_a_message_has_refused_each_offer(queue: Queue) -> None:
    """It is known that none runs there, so the worker is not at fault."""
    queue.busy()
    for name in "ab":
        queue.offer(name)
    queue.pass_time(1)
    refusal = DispatchRejection(code="invalid_request", message="what is this?")
    reply = DispatchReply(worker=MAC, boot_id=BootId("b1"), results=[], refusal=refusal)
    outcomes = queue.queue.answered(2, reply, queue.now)
    assert _said(outcomes) == [("a", "invalid_request", False), ("b", "invalid_request", False)]
    assert len(queue.queue) == 1


def test_where_nobody_listens_no_offer_arrived(queue: Queue) -> None:
    queue.busy()
    answers = queue.queue.answered(1, None, queue.now)
    assert _said(answers) == [("first", "worker_lost", False)]
    assert (len(queue.queue), answers[0].boot_id) == (0, None)


def test_of_an_offer_that_is_not_answered_in_time_nobody_knows_whether_it_arrived() -> None:
    queue = Queue(ack_timeout_ms=200)
    queue.busy()
    assert queue.pop(199) == ([], [])
    sent, lost = queue.pop(2)
    assert (sent, _said(lost)) == ([], [("first", "worker_lost", True)])
    assert queue.answer(1, None) == [], "that is too late"
    assert (len(queue.queue), queue.queue.next_at) == (0, float("inf"))


# Gone.


def test_of_a_worker_that_is_gone_nothing_is_expected_any_more(queue: Queue) -> None:
    queue.busy()
    queue.offer("held")
    queue.busy("studio")
    answers = queue.queue.worker_gone(MAC, BOOT)
    assert _said(answers) == [("first", "worker_lost", True), ("held", "worker_lost", False)]
    assert queue.pass_time(5) == [] and len(queue.queue) == 1
    assert queue.answer(1, None) == [] and queue.queue.worker_gone(MAC, BOOT) == []


def test_another_boot_is_another_worker(queue: Queue) -> None:
    queue.busy()
    assert queue.offer("a", boot="b2") == ["a"]
    assert queue.queue.worker_gone(MAC, BootId("b3")) == []
    assert _said(queue.queue.worker_gone(MAC, BOOT)) == [("first", "worker_lost", True)]
    assert _said(queue.answer(2, None, boot="b2")) == [("a", None, False)]


# The pause after a rejection.


@pytest.mark.parametrize("code", ["queue_full", "memory_pressure"])
def test_after_one_that_had_no_room_a_worker_gets_nothing_for_a_moment_but_what_is_urgent(
    queue: Queue, code: str
) -> None:
    queue.busy()
    queue.answer(1, DispatchRejection(code=code, message="no room"))
    queue.now += 0.005
    assert queue.offer("a") == []
    assert queue.pass_time(10) == []
    assert queue.offer("b", priority="high") == ["a b"]
    assert queue.offer("c") == []
    assert queue.pass_time(5) == ["c"], "twenty milliseconds are over"


def test_all_models_of_it_pause_but_no_other_worker(queue: Queue) -> None:
    queue.busy()
    queue.answer(1, NO_ROOM)
    assert queue.offer("a", model="best") == []
    assert queue.offer("b", "studio") == ["b"]


def test_after_one_that_it_could_not_serve_it_gets_the_next_at_once(queue: Queue) -> None:
    queue.busy()
    queue.answer(1, DispatchRejection(code="model_unavailable", message="it has no such model"))
    queue.now += 0.005
    assert queue.offer("a") == ["a"]


def test_other_limits_hold_for_the_workers_that_come_next(queue: Queue) -> None:
    queue.busy()
    queue.queue.configure(DispatchSettings(min_hold_ms=0, max_hold_ms=0, ack_timeout_ms=50))
    queue.offer("a", "studio")
    assert queue.offer("b", "studio") == ["b"]
    _, lost = queue.pop(60)
    assert {each.request.request_id for each in lost} == {"a", "b"}


def _result(dispatch: Dispatch) -> DispatchResult:
    return DispatchResult(
        request_id=dispatch.request_id, client=dispatch.client, attempt=dispatch.attempt
    )
