"""The transition table of a request.

    arrived ─► waiting ─► fetching ─► queued ─► offered ─► running ─► ended, or lost
                  │                     ▲  ▲       │          │
                  └─► delegated         │  └───────┘          │  a worker rejected it
                      (a list)          └── backing_off ◄─────┘  an attempt failed

A request is in one state. For each trigger, `TRANSITIONS` names the action of
`controller.lifecycle.machine` that follows. Events come in and instructions go out, as values: the
machine does not wait, has no clock and does no I/O. (The same shape: dask's
`worker_state_machine`.)
"""

from collections.abc import Mapping
from typing import Literal

from controller.requests.request import State

STATES: Mapping[State, str] = {
    "waiting": "it may not start yet: an earlier turn of its session is served, or a new leader "
    "does not know yet which requests the workers have",
    "fetching": "the earlier messages of its session are requested from a worker",
    "queued": "no worker has capacity for it",
    "offered": "it was dispatched to a worker, which has not answered",
    "running": "a worker has it",
    "backing_off": "an attempt failed; the next one starts after a delay",
    "delegated": "the list runner serves it, part by part",
    "ended": "its client was sent the terminal message; it is remembered for half a minute",
    "lost": "its worker no longer has it, and how it ended is unknown; its attempt number is "
    "remembered for half a minute",
}

Trigger = Literal[
    "may_begin", "history_received", "capacity_changed", "backoff_ended", "offer_accepted",
    "offer_rejected", "tokens_emitted", "finished", "failed", "requeued", "worker_gone",
    "contents_received", "contents_lost", "list_ended", "published_again", "cancel_requested",
    "attempts_exhausted", "end_requested",
]  # fmt: skip

Action = Literal[
    "begin", "place", "place_with_history", "place_again", "run", "place_elsewhere",
    "record_tokens", "end_finished", "end_failed", "requeue", "fail_over", "set_contents", "lose",
    "end_list", "add_inboxes", "attach", "attach_to_list", "resend_end", "end_cancelled",
    "cancel_offer", "cancel_at_worker", "cancel_list", "fail", "abort", "fail_list",
    "run_again",
]  # fmt: skip

_NOT_AT_A_WORKER: Mapping[Trigger, Action] = {
    "published_again": "add_inboxes",
    "cancel_requested": "end_cancelled",
    "end_requested": "fail",
}

TRANSITIONS: Mapping[State, Mapping[Trigger, Action]] = {
    "waiting": {"may_begin": "begin", **_NOT_AT_A_WORKER},
    "fetching": {"history_received": "place_with_history", **_NOT_AT_A_WORKER},
    "queued": {"capacity_changed": "place_again", **_NOT_AT_A_WORKER},
    "offered": {
        "offer_accepted": "run",
        "offer_rejected": "place_elsewhere",
        "requeued": "requeue",
        "published_again": "add_inboxes",
        "cancel_requested": "cancel_offer",
        "attempts_exhausted": "fail",
        "end_requested": "abort",
    },
    "running": {
        "tokens_emitted": "record_tokens",
        "finished": "end_finished",
        "failed": "end_failed",
        "requeued": "requeue",
        "worker_gone": "fail_over",
        "contents_received": "set_contents",
        "contents_lost": "lose",
        "published_again": "attach",
        "cancel_requested": "cancel_at_worker",
        "attempts_exhausted": "fail",
        "end_requested": "abort",
    },
    "backing_off": {"backoff_ended": "place", **_NOT_AT_A_WORKER},
    "delegated": {
        "list_ended": "end_list",
        "published_again": "attach_to_list",
        "cancel_requested": "cancel_list",
        "end_requested": "fail_list",
    },
    "ended": {"published_again": "resend_end"},
    "lost": {"published_again": "run_again"},
}
"""The action for each trigger in each state."""

LATE: Mapping[State, frozenset[Trigger]] = {
    **dict.fromkeys(
        ("waiting", "queued", "offered", "running", "backing_off", "delegated"),
        frozenset({"history_received"}),
    ),
    "ended": frozenset({"cancel_requested", "history_received"}),
    "lost": frozenset({"cancel_requested", "history_received"}),
}
"""Triggers that may come when the request has gone on already; they do nothing. All others without
an action are faults."""
