"""Requests for which no worker has capacity, by value: who waits for one, and how long."""

import pytest

from shared.messages.model_status import ModelStatus
from tests.controller.requests.driven import FULL, Driven
from tests.controller.values import models


def test_a_request_waits_until_a_worker_has_room() -> None:
    driven = Driven()
    driven.join("w1", **FULL)
    driven.ask()
    assert (driven.sent(), driven.machine.waiting) == ([], 1)
    driven.hear("w1")
    driven.pass_time(0.1)
    assert driven.offered() == [("w1", 1)] and driven.machine.waiting == 0


def test_a_place_that_is_free_again_is_given_away_in_the_order_of_priority() -> None:
    driven = Driven()
    driven.join("w1", max_queue_depth=1, max_batch_size=1)
    running = [driven.run(name) for name in "ab"]
    for name, priority in (("low", "low"), ("first", "medium"), ("second", "medium")):
        driven.ask(name, priority=priority)
    driven.pass_time(0.01)
    assert driven.sent() == []
    for name in ("first", "second", "low"):
        driven.finish(running.pop(0))
        driven.pass_time(0.1)
        sent = driven.next_sent()
        assert sent.dispatch.request_id == name
        driven.accept(sent)
        running.append(sent)


def test_a_request_does_not_overtake_those_that_wait_for_the_same() -> None:
    driven = Driven()
    driven.join("w1", **FULL)
    driven.ask("first")
    driven.hear("w1")
    driven.ask("second")
    assert driven.machine.waiting == 2
    driven.pass_time(0.1)
    ids = [each.request_id for sent in driven.sent() for each in sent.batch.dispatches]
    assert ids == ["first", "second"]


def test_who_waited_in_vain_is_told_why_there_was_no_worker() -> None:
    driven = Driven(waiting_room={"max_wait_ms": 2000})
    driven.join("w1", **FULL)
    driven.ask(stream=False)
    driven.pass_time(1.99)
    assert driven.words() == []
    driven.pass_time(0.02)
    error = driven.error()
    assert (error.code, error.retry_after_ms) == ("queue_full", 1000)
    assert "w1 has 1 requests queued" in error.message
    assert driven.view("w1").queue_full_count == 1
    totals = driven.machine.metrics.totals
    assert (totals.waiting, totals.waited, totals.unplaced) == (0, 1, 1)


def test_who_finds_no_room_to_wait_is_told_so_at_once() -> None:
    driven = Driven(waiting_room={"max_depth": 1})
    driven.join("w1", **FULL)
    driven.ask("first", inbox="_INBOX.first")
    driven.ask("r")
    assert (driven.error().code, driven.words("_INBOX.first")) == ("queue_full", [])
    driven.ask("urgent", priority="high")
    assert driven.words("_INBOX.first") == ["queue_full"]


def test_switched_off_nobody_waits_for_room() -> None:
    driven = Driven(waiting_room={"enabled": False})
    driven.join("w1", **FULL)
    driven.ask()
    assert driven.error().code == "queue_full"


def test_also_then_one_waits_for_a_worker_that_may_be_back_in_a_moment() -> None:
    driven = Driven("w1", waiting_room={"enabled": False})
    driven.leave("w1")
    driven.ask()
    assert driven.machine.waiting == 1
    driven.join("w1", boot="b2")
    driven.pass_time(0.1)
    assert driven.offered() == [("w1", 1)]


def test_also_then_one_waits_for_a_worker_that_has_not_told_yet_what_it_has() -> None:
    driven = Driven(waiting_room={"enabled": False})
    driven.hear("w1", "joined")
    driven.ask()
    assert (driven.machine.waiting, driven.sent()) == (1, [])
    driven.claimed("w1")
    driven.pass_time(0.1)
    assert driven.offered() == [("w1", 1)]


def test_also_then_one_waits_until_each_worker_was_heard_and_no_longer() -> None:
    driven = Driven(settled_s=3.0, waiting_room={"enabled": False})
    driven.join("w1", **FULL)
    driven.ask(stream=False)
    driven.pass_time(2.99)
    assert driven.words() == []
    driven.pass_time(0.02)
    assert driven.error().code == "queue_full"


def test_nobody_waits_for_what_no_worker_will_ever_serve() -> None:
    driven = Driven()
    driven.join("w1", models=models(best="warm"))
    driven.ask()
    assert driven.error().code == "no_worker"


def test_until_each_worker_was_heard_that_is_there_nobody_is_told_that_there_is_none() -> None:
    driven = Driven(settled_s=3.0)
    driven.join("w1", models=models(best="warm"))
    driven.ask(stream=False)
    driven.pass_time(2.9)
    assert driven.words() == []
    driven.join("w2")
    driven.pass_time(0.1)
    assert driven.offered() == [("w2", 1)]


def test_when_each_worker_was_heard_it_is_told_at_once() -> None:
    driven = Driven(settled_s=3.0)
    driven.join("w1", models=models(best="warm"))
    driven.ask(stream=False)
    driven.pass_time(2.99)
    assert driven.words() == []
    driven.pass_time(0.02)
    assert driven.error().code == "no_worker"


def test_also_where_one_was_heard_again_before() -> None:
    driven = Driven(settled_s=3.0)
    driven.join("w1", models=models(best="warm"))
    driven.ask(stream=False)
    driven.pass_time(1)
    driven.hear("w1", models=models(best="warm"))
    driven.pass_time(2.02)
    assert driven.error().code == "no_worker"


@pytest.mark.parametrize(("limit_ms", "heard_s"), [(5000, 6.0), (1000, 3.0)])
def test_the_wait_is_not_over_before_each_worker_was_heard(limit_ms: int, heard_s: float) -> None:
    driven = Driven(settled_s=heard_s, waiting_room={"max_wait_ms": limit_ms})
    driven.ask(stream=False)
    driven.pass_time(heard_s - 0.1)
    assert driven.words() == []
    driven.pass_time(0.2)
    assert driven.error().code == "no_worker"


def test_a_worker_that_starts_for_the_first_time_is_waited_for_a_minute() -> None:
    driven = Driven()
    driven.join("w1", state="starting")
    driven.ask(stream=False)
    for _ in range(58):
        driven.pass_time(1)
        driven.hear("w1", state="starting")
    assert driven.words() == []
    driven.hear("w1")
    driven.pass_time(0.1)
    assert driven.offered() == [("w1", 1)]


def test_also_one_that_waits_already_waits_for_a_worker_that_starts_then() -> None:
    driven = Driven()
    driven.ask(stream=False)
    driven.pass_time(4)
    driven.join("w1", state="starting")
    driven.pass_time(10)
    assert driven.words() == [] and driven.machine.waiting == 1


def test_a_worker_that_loads_the_model_takes_requests() -> None:
    driven = Driven()
    driven.join("w1", models=[ModelStatus(id=models(demo="warm")[0].id, state="loading")])
    driven.ask()
    assert driven.offered() == [("w1", 1)]
