"""Requests in each state of their life."""

from typing import Any

from controller.requests.events import LinkRestored
from controller.requests.request import State
from tests.controller.requests.driven import FULL, Driven

HELLO = {"role": "user", "content": "Hello"}
HI = {"role": "assistant", "content": "Hi"}
NOT_AT_A_WORKER: tuple[State, ...] = ("waiting", "fetching", "queued", "backing_off")
_LONG_MS = 60_000


def in_state(state: State, **fields: Any) -> Driven:
    """The request `r` is in this state, with the workers `w1` and `w2`; what was said until then
    was read."""
    driven = Driven(
        "w1",
        "w2",
        dispatch={"ack_timeout_ms": _LONG_MS},
        retry={"initial_delay_ms": _LONG_MS, "max_delay_ms": _LONG_MS, "jitter": 0},
        waiting_room={"max_wait_ms": _LONG_MS},
    )
    _bring(driven, state, fields)
    assert driven.known().state == state
    driven.sent()
    driven.orders()
    driven.list_orders()
    return driven


def _bring(driven: Driven, state: State, fields: dict[str, Any]) -> None:
    match state:
        case "waiting":
            driven.run("before", session_id="s")
            driven.ask(session_id="s", **fields)
        case "fetching":
            driven.finish(driven.run("before", prompt=None, messages=[HELLO], session_id="s"))
            driven.ask(prompt=None, messages=[HELLO], session_id="s", **fields)
        case "queued":
            for name in ("w1", "w2"):
                driven.hear(name, **FULL)
            driven.ask(**fields)
        case "offered":
            driven.ask(**fields)
        case "running":
            driven.run(**fields)
        case "backing_off":
            driven.requeue(driven.run(**fields))
        case "delegated":
            driven.ask(prompt=["x", "y"], **fields)
        case "ended":
            driven.finish(driven.run(**fields))
        case "lost":
            driven.run(**fields)
            driven.pass_time(2)
            driven.on(LinkRestored())
            driven.claimed("w1")
            driven.claimed("w2")
