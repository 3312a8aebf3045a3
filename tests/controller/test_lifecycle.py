"""The table of a request's life is whole, and leads everywhere."""

from itertools import product
from typing import get_args

from controller.requests.lifecycle import STATES, TRANSITIONS, Action, Trigger
from controller.requests.machine import RequestMachine
from controller.requests.request import State


def test_each_state_has_an_action_for_each_trigger() -> None:
    assert set(TRANSITIONS) == set(product(get_args(State), get_args(Trigger)))
    assert set(STATES) == set(get_args(State))


def test_each_action_is_one_of_the_machine_and_happens_somewhere() -> None:
    assert set(TRANSITIONS.values()) == set(get_args(Action))
    for action in get_args(Action):
        assert action == "nothing" or callable(getattr(RequestMachine, f"_{action}"))


def test_what_has_ended_stays_so() -> None:
    """But for who asks again after half a minute's memory is all that is left of it."""
    of_ended = {
        trigger: action
        for (state, trigger), action in TRANSITIONS.items()
        if state == "ended" and action != "nothing"
    }
    assert of_ended == {"published_again": "tell_end_again", "not_attached": "serve_again"}


def test_a_cancel_is_heard_in_every_state_that_is_not_the_end() -> None:
    deaf = {state for state in STATES if TRANSITIONS[state, "cancel_asked"] == "nothing"}
    assert deaf == {"ended"}


def test_only_a_list_has_no_deadline_of_the_machine() -> None:
    """Its parts have, and the runner looks after those that have not gone."""
    without = {state for state in STATES if TRANSITIONS[state, "deadline_passed"] == "nothing"}
    assert without == {"delegated", "ended"}
