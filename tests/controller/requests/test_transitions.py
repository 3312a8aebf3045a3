"""The table of a request's life is whole, and leads everywhere."""

from collections.abc import Collection
from typing import get_args

import pytest

from controller.lifecycle.machine import RequestMachine
from controller.requests.request import State
from controller.requests.transitions import STATES, TRANSITIONS, Action, Trigger

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
    for action in happen:
        assert callable(getattr(RequestMachine, f"_{action}"))


@pytest.mark.parametrize("trigger", ["cancel_asked", "finish_asked"])
def test_whatever_has_not_ended_hears_a_cancel_and_an_end_that_is_asked_for(
    trigger: Trigger,
) -> None:
    assert _hearing(trigger) == set(STATES) - {"ended", "lost"}


def test_in_every_state_a_request_may_be_published_again() -> None:
    assert _hearing("published_again") == set(STATES)


def test_what_has_ended_stays_so_but_for_who_asks_again() -> None:
    assert TRANSITIONS["ended"] == {"published_again": "tell_end_again"}
    assert TRANSITIONS["lost"] == {"published_again": "run_again"}


def test_what_no_worker_has_ends_at_once_and_else_its_worker_is_told() -> None:
    ends = {state: actions.get("cancel_asked") for state, actions in TRANSITIONS.items()}
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
        (("contents_told", "contents_lost"), {"running"}),
        (("offer_accepted", "offer_rejected"), {"offered"}),
        (("returned",), {"offered", "running"}),
        (("may_begin",), {"waiting"}),
        (("history_told",), {"fetching"}),
        (("capacity_changed",), {"queued"}),
        (("pause_over",), {"backing_off"}),
        (("list_ended",), {"delegated"}),
    ],
)
def test_what_happens_means_something_only_where_it_can_happen(
    triggers: Collection[Trigger], states: set[str]
) -> None:
    for trigger in triggers:
        assert _hearing(trigger) == states
