"""The life of a request, in one table.

    arrived ─► waiting ─► fetching ─► queued ─► offered ─► running ─► ended, or lost
                  │                     ▲  ▲       │          │
                  └─► delegated         │  └───────┘          │  a worker said no
                      (a list)          └── backing_off ◄─────┘  an attempt failed

A request is in one state; what happens to it is one trigger; `TRANSITIONS` says which action of
`controller.lifecycle.machine` follows. Events come in and instructions go out, as values: the
machine waits for nothing, has no clock and does no I/O. (The same shape: dask's
`worker_state_machine`.)
"""

from collections.abc import Mapping
from typing import Literal

from controller.requests.request import State

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
    "lost": "its worker does not have it any more, and nobody knows how it ended; its number of "
    "attempts is remembered as long",
}

Trigger = Literal[
    "may_begin", "history_told", "capacity_changed", "pause_over", "offer_accepted",
    "offer_rejected", "tokens_emitted", "finished", "failed", "returned", "worker_gone",
    "contents_told", "contents_lost", "list_ended", "published_again", "cancel_asked",
    "finish_asked",
]  # fmt: skip

Action = Literal[
    "begin", "place", "place_with_history", "place_again", "run", "look_further", "note_tokens",
    "end_well", "end_failed", "take_back", "lose_worker", "take_contents", "lose", "end_list",
    "listen", "attach", "attach_to_list", "tell_end_again", "end_cancelled", "cancel_offer",
    "cancel_at_worker", "cancel_list", "fail", "stop", "fail_list",
    "run_again",
]  # fmt: skip

_NOT_AT_A_WORKER: Mapping[Trigger, Action] = {
    "published_again": "listen",
    "cancel_asked": "end_cancelled",
    "finish_asked": "fail",
}

TRANSITIONS: Mapping[State, Mapping[Trigger, Action]] = {
    "waiting": {"may_begin": "begin", **_NOT_AT_A_WORKER},
    "fetching": {"history_told": "place_with_history", **_NOT_AT_A_WORKER},
    "queued": {"capacity_changed": "place_again", **_NOT_AT_A_WORKER},
    "offered": {
        "offer_accepted": "run",
        "offer_rejected": "look_further",
        "returned": "take_back",
        "published_again": "listen",
        "cancel_asked": "cancel_offer",
        "finish_asked": "stop",
    },
    "running": {
        "tokens_emitted": "note_tokens",
        "finished": "end_well",
        "failed": "end_failed",
        "returned": "take_back",
        "worker_gone": "lose_worker",
        "contents_told": "take_contents",
        "contents_lost": "lose",
        "published_again": "attach",
        "cancel_asked": "cancel_at_worker",
        "finish_asked": "stop",
    },
    "backing_off": {"pause_over": "place", **_NOT_AT_A_WORKER},
    "delegated": {
        "list_ended": "end_list",
        "published_again": "attach_to_list",
        "cancel_asked": "cancel_list",
        "finish_asked": "fail_list",
    },
    "ended": {"published_again": "tell_end_again"},
    "lost": {"published_again": "run_again"},
}
"""What is done when something happens to a request; nothing where that is not named."""
