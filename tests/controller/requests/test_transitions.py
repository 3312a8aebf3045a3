"""The table of a request's life is whole, and leads everywhere."""

from collections.abc import Collection
from typing import get_args

import pytest

from controller.requests.request import State
from controller.requests.transitions import LATE, STATES, TRANSITIONS, Action, Trigger
from tests.controller.requests.driven import Driven

_NOT_AT_A_WORKER = {"waiting", "fetching", "queued", "backing_off"}


def _hearing(trigger: Trigger) -> set[str]:
    """The states in which it has an action."""
    return {state for state, actions in TRANSITIONS.items() if trigger in actions}


def test_every_state_is_in_the_table_and_described() -> None:
    assert set(TRANSITIONS) == set(STATES) == set(get_args(State))


def test_each_trigger_means_something_in_some_state_and_there_is_no_other() -> None:
    heard = {trigger for actions in TRANSITIONS.values() for trigger in actions}
    assert heard == set(get_args(Trigger))


def test_each_action_is_one_of_the_machine_and_happens_somewhere() -> None:
    happen = {action for actions in TRANSITIONS.values() for action in actions.values()}
    assert happen == set(get_args(Action))
    actions = Driven("w1").machine._actions
    assert set(actions) == happen and all(map(callable, actions.values()))


def test_what_may_come_late_has_no_action_there() -> None:
    assert LATE.keys() <= TRANSITIONS.keys()
    assert all(not late & TRANSITIONS[state].keys() for state, late in LATE.items())


def test_a_trigger_without_an_action_is_counted_and_logged() -> None:
    driven = Driven("w1")
    driven.run()
    driven.machine._fire(driven.known(), "backoff_ended")
    assert driven.machine.metrics.unexpected_triggers == 1


@pytest.mark.parametrize("trigger", ["cancel_requested", "end_requested"])
def test_whatever_has_not_ended_hears_a_cancel_and_an_end_that_is_asked_for(
    trigger: Trigger,
) -> None:
    assert _hearing(trigger) == set(STATES) - {"ended", "lost"}


def test_in_every_state_a_request_may_be_published_again() -> None:
    assert _hearing("published_again") == set(STATES)


def test_what_has_ended_stays_so_but_for_who_asks_again() -> None:
    assert TRANSITIONS["ended"] == {"published_again": "resend_end"}
    assert TRANSITIONS["lost"] == {"published_again": "run_again"}


def test_what_no_worker_has_ends_at_once_and_else_its_worker_is_told() -> None:
    ends = {state: actions.get("cancel_requested") for state, actions in TRANSITIONS.items()}
    at_once = {state for state, action in ends.items() if action == "end_cancelled"}
    assert at_once == _NOT_AT_A_WORKER
    assert {state: ends[state] for state in ("offered", "running", "delegated")} == {
        "offered": "cancel_offer",
        "running": "cancel_at_worker",
        "delegated": "cancel_list",
    }


@pytest.mark.parametrize(
    ("triggers", "states"),
    [
        (("tokens_emitted", "finished", "failed", "worker_gone"), {"running"}),
        (("contents_received", "contents_lost"), {"running"}),
        (("offer_accepted", "offer_rejected"), {"offered"}),
        (("requeued",), {"offered", "running"}),
        (("may_begin",), {"waiting"}),
        (("history_received",), {"fetching"}),
        (("capacity_changed",), {"queued"}),
        (("backoff_ended",), {"backing_off"}),
        (("list_ended",), {"delegated"}),
    ],
)
def test_what_happens_means_something_only_where_it_can_happen(
    triggers: Collection[Trigger], states: set[str]
) -> None:
    for trigger in triggers:
        assert _hearing(trigger) == states
