"""The life of a request, in one table.

    arrived ─► waiting ─► fetching ─► queued ─► offered ─► running ─► ended
                  │                     ▲  ▲       │          │
                  └─► delegated         │  └───────┘          │  a worker said no
                      (a list)          └── backing_off ◄─────┘  an attempt failed

A request is in one state; what happens to it is one trigger; `TRANSITIONS` says which action of
`controller.request_machine` follows. Events come in and instructions go out, as values: the machine
waits for nothing, has no clock and does no I/O. (The same shape: dask's `worker_state_machine`.)
"""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from controller.request import State

STATES: Mapping[State, str] = {
    "waiting": "it may not begin: for an earlier turn of its session, or until who leads since a "
    "moment ago knows what the workers have",
    "fetching": "a worker is asked for what was said before in its session",
    "queued": "no worker can take it now",
    "offered": "a worker was asked to take it",
    "running": "a worker has it",
    "backing_off": "an attempt failed, the next one comes after a pause",
    "delegated": "the list runner serves it, prompt by prompt",
    "ended": "its client was told the end; it is remembered for half a minute",
}

Trigger = Literal[
    "may_begin", "history_told", "capacity_changed", "pause_over", "offer_accepted", "offer_rejected",
    "tokens_emitted", "finished", "failed", "returned", "worker_gone", "contents_told",
    "contents_lost", "list_ended", "published_again", "cancel_asked", "finish_asked",
]  # fmt: skip

Action = Literal[
    "nothing", "begin", "place", "place_with_history", "place_again", "run", "look_further",
    "note_tokens", "end_well", "end_failed", "take_back", "lose_worker", "take_contents", "forget",
    "end_list", "listen", "attach", "attach_to_list", "tell_end_again", "end_cancelled",
    "cancel_offer", "cancel_at_worker", "cancel_list", "fail", "stop", "fail_list",
]  # fmt: skip

_NO: Action = "nothing"

_TABLE: Mapping[Trigger, Sequence[Action]] = {
    #                    waiting          fetching              queued           offered          running             backing_off      delegated         ended
    "may_begin":        ("begin",         _NO,                  _NO,             _NO,             _NO,                _NO,             _NO,              _NO),
    "history_told":     (_NO,             "place_with_history", _NO,             _NO,             _NO,                _NO,             _NO,              _NO),
    "capacity_changed": (_NO,             _NO,                  "place_again",   _NO,             _NO,                _NO,             _NO,              _NO),
    "pause_over":       (_NO,             _NO,                  _NO,             _NO,             _NO,                "place",         _NO,              _NO),
    "offer_accepted":   (_NO,             _NO,                  _NO,             "run",           _NO,                _NO,             _NO,              _NO),
    "offer_rejected":   (_NO,             _NO,                  _NO,             "look_further",  _NO,                _NO,             _NO,              _NO),
    "tokens_emitted":   (_NO,             _NO,                  _NO,             "note_tokens",   "note_tokens",      _NO,             _NO,              _NO),
    "finished":         (_NO,             _NO,                  _NO,             "end_well",      "end_well",         _NO,             _NO,              _NO),
    "failed":           (_NO,             _NO,                  _NO,             "end_failed",    "end_failed",       _NO,             _NO,              _NO),
    "returned":         (_NO,             _NO,                  _NO,             "take_back",     "take_back",        _NO,             _NO,              _NO),
    "worker_gone":      (_NO,             _NO,                  _NO,             _NO,             "lose_worker",      _NO,             _NO,              _NO),
    "contents_told":    (_NO,             _NO,                  _NO,             _NO,             "take_contents",    _NO,             _NO,              _NO),
    "contents_lost":    (_NO,             _NO,                  _NO,             _NO,             "forget",           _NO,             _NO,              _NO),
    "list_ended":       (_NO,             _NO,                  _NO,             _NO,             _NO,                _NO,             "end_list",       _NO),
    "published_again":  ("listen",        "listen",             "listen",        "listen",        "attach",           "listen",        "attach_to_list", "tell_end_again"),
    "cancel_asked":     ("end_cancelled", "end_cancelled",      "end_cancelled", "cancel_offer",  "cancel_at_worker", "end_cancelled", "cancel_list",    _NO),
    "finish_asked":     ("fail",          "fail",               "fail",          "stop",          "stop",             "fail",          "fail_list",      _NO),
}  # fmt: skip

TRANSITIONS: Mapping[tuple[State, Trigger], Action] = {
    (state, trigger): action
    for trigger, actions in _TABLE.items()
    for state, action in zip(get_args(State), actions, strict=True)
}
