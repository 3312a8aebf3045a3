"""Whole requests in any order of what may happen to them: none is lost, none is answered twice."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from tests.controller.virtual.clock import run_in_virtual_time
from tests.controller.virtual.cluster import follow_steps
from tests.controller.virtual.steps import (
    CONTROLLERS,
    CUT_WORKERS,
    LEAVES,
    REQUESTS,
    Ask,
    CancelIt,
    CrashEngine,
    Crowd,
    Cut,
    Drain,
    Generate,
    Kill,
    Leave,
    Pace,
    Restart,
    SlowFrom,
    SlowTo,
    Step,
    Wait,
    scripts,
)


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Of thousands of requests that have bad luck nobody reads the log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def follow(*steps: Step) -> None:
    """Do these steps in a cluster; in the end all must be in order."""
    run_in_virtual_time(follow_steps(steps))


def test_requests_of_all_kinds_are_served_by_whichever_controller() -> None:
    follow(*(Ask(number, via) for number in range(REQUESTS) for via in CONTROLLERS))


def test_with_one_worker_after_the_other_gone_all_requests_end() -> None:
    follow(Ask(0, "c-1"), Ask(2, "c-2"), Wait(0.06), Kill("w-1"), Ask(3, "c-2"), Kill("w-2"))


def test_what_a_boot_took_that_nobody_ever_heard_of_is_served_elsewhere() -> None:
    follow(
        Restart("w-1", 2.0), Restart("w-2", 2.0), Ask(0, "c-1"), Wait(0.06),
        Kill("w-1"), Kill("w-2"),
    )  # fmt: skip


@pytest.mark.parametrize("request_number", [0, 2])
def test_what_ends_while_the_loss_of_its_worker_is_dealt_with_stays_ended(
    request_number: int,
) -> None:
    """A full buffer lets everything wait that publishes."""
    follow(
        Pace("idle"), SlowFrom("w-1", 0.02), SlowFrom("w-2", 0.02), Ask(request_number, "c-1"),
        Wait(0.3), Crowd("c-1", 0.05), Crowd("c-2", 0.05), Generate("w-1", "refusal"),
        Generate("w-2", "refusal"), Wait(0.0005), Restart("w-1"), Restart("w-2"), Wait(0.3),
    )  # fmt: skip


def test_the_ack_of_a_worker_that_ended_in_the_same_moment_counts_for_nothing() -> None:
    follow(Ask(0, "c-1"), Wait(0.002), Restart("w-1"), Restart("w-2"))


def test_who_asks_again_just_before_the_ack_hears_the_end_that_comes_with_it() -> None:
    follow(Pace("at once"), Ask(1, "c-1"), Wait(0.0005), Ask(1, "c-1"), Wait(0.3))


def test_who_asks_again_while_the_worker_cannot_be_reached_hears_the_end() -> None:
    follow(
        Pace("idle"), Ask(1, "c-1"), Wait(0.06), Cut("w-1", 0.1), Cut("w-2", 0.1), Ask(1, "c-1"),
        Wait(0.3),
    )  # fmt: skip


def test_who_heard_the_end_while_it_was_to_be_attached_is_not_served_again() -> None:
    follow(
        Pace("idle"), Ask(0, "c-1"), Wait(0.06), Generate("w-1", "token"), Generate("w-2", "token"),
        SlowTo("w-1", 1.8), SlowTo("w-2", 1.8), Wait(0.06), Ask(0, "c-1"), Wait(0.06),
        Restart("w-1"), Restart("w-2"), Wait(2.5),
    )  # fmt: skip


def test_who_asks_again_for_what_a_worker_ended_before_it_was_cut_off_hears_it() -> None:
    follow(Ask(1, "c-1"), Wait(0.3), Cut("w-1", 0.1), Cut("w-2", 0.1), Wait(0.3), Ask(1, "c-1"))


def test_a_controller_that_leaves_does_not_end_what_another_one_has_taken_up() -> None:
    follow(
        Pace("idle"), Ask(0, "c-1"), Wait(0.3), Leave("c-1"), Wait(0.06), Ask(0, "c-2"), Wait(12)
    )  # fmt: skip


def test_what_comes_in_the_moment_in_which_its_controller_leaves_hears_an_end() -> None:
    """Some of these arrive when all others were ended already."""
    for wait_s in (0.0005, 0.000999, 0.001, 0.0010001, 0.0015):
        follow(Ask(0, "c-1"), Wait(wait_s / 2), Wait(wait_s / 2), Leave("c-1"))


def test_what_was_cancelled_and_asked_for_again_elsewhere_is_not_given_up() -> None:
    """The worker, back after a cut, hears first from who remembers the cancelled one."""
    follow(
        Ask(0, "c-1"), Wait(0.0005), Kill("w-1"), CancelIt(0), Cut("w-2", 0.1), Ask(0, "c-2"),
        Wait(0.002),
    )  # fmt: skip


def test_who_asks_elsewhere_for_what_a_controller_that_leaves_tries_again_hears_the_end() -> None:
    """Both have it served by the one worker that is left."""
    follow(
        Ask(0, "c-1"), Wait(0.06), CrashEngine("w-2"), Kill("w-1"), Leave("c-1"), Ask(0, "c-2")
    )  # fmt: skip


def test_who_is_still_to_be_told_of_a_stream_when_its_controller_leaves_hears_the_end() -> None:
    follow(
        SlowFrom("c-1", 1.2), Ask(0, "c-1"), Ask(0, "c-2"), Wait(0.95), Leave("c-1")
    )  # fmt: skip


def test_what_ended_while_it_was_asked_for_again_is_not_handed_over_as_new() -> None:
    follow(
        Drain("w-2"), SlowTo("c-2", 0.02), Ask(3, "c-1"), SlowTo("c-1", 1.2), Ask(2, "c-2"),
        Kill("w-1"), SlowTo("c-2", 0.001), Wait(0.95), Ask(3, "c-2", same_inbox=True), Wait(0.3),
        Leave("c-2"),
    )  # fmt: skip


def test_all_who_listen_are_handed_over_also_where_the_answer_is_late() -> None:
    follow(
        Leave("c-1"), SlowFrom("c-1", 1.2), Ask(0, "c-2"), Wait(0.95), Ask(0, "c-1")
    )  # fmt: skip


def test_a_list_that_is_cancelled_while_a_worker_is_taken_for_gone_hears_the_end() -> None:
    """Its clients heard tokens that its controller has not heard of."""
    follow(
        Kill("w-1"), SlowTo("c-1", 0.4), Restart("w-2", 0.0), Ask(0, "c-1"), CancelIt(8),
        Ask(8, "c-2"),
    )  # fmt: skip


def test_a_stream_that_had_begun_goes_on_elsewhere() -> None:
    follow(Wait(0.3), Ask(2, "c-1"), Wait(0.3), CrashEngine("w-2"))


@settings(max_examples=150, derandomize=True)  # `judge` is for ever new ones
@given(scripts(CUT_WORKERS, LEAVES))
def test_no_request_is_lost_or_answered_twice(steps: list[Step]) -> None:
    follow(*steps)
