"""The messages and the state that the leader itself sends to the clients of a request."""

from controller.requests.request import State, TrackedRequest
from shared.messages.control import RequestStateName
from shared.messages.stream import (
    ChoiceOutput,
    DoneMessage,
    ErrorDetails,
    FailedMessage,
    StatusMessage,
    Timings,
    Usage,
)

_STATE_NAMES: dict[State, RequestStateName] = {
    "waiting": "accepted",
    "fetching": "accepted",
    "queued": "accepted",
    "offered": "dispatching",
    "running": "running",
    "backing_off": "accepted",
    "delegated": "running",
    "lost": "unknown",
}


def waiting_status(request: TrackedRequest) -> StatusMessage:
    if request.started:
        return StatusMessage(request.request_id, request.attempt, None, "migrating")
    return StatusMessage(request.request_id, request.attempt, None, "queued", reason=request.reason)


def failure(request: TrackedRequest, error: ErrorDetails) -> FailedMessage:
    route = request.route.model_dump(exclude_none=True) if request.route is not None else None
    return FailedMessage(request.request_id, request.attempt, request.worker, error, route)


def cancellation(request: TrackedRequest, now: float) -> DoneMessage:
    """Return the terminal message of a request that was cancelled while no worker had it."""
    outputs = tuple(
        ChoiceOutput(choice, 0, [], "", finish_reason="cancelled")
        for choice in range(request.contents.choices)
    )
    waited_ms = round(request.elapsed_ms(now), 2)
    timings = Timings(waited_ms, 0.0, waited_ms, 0.0)
    return DoneMessage(request.request_id, request.attempt, None, Usage(0, 0, 0), timings, outputs)


def state_name(request: TrackedRequest) -> RequestStateName:
    """Return the name of the state of a request in answers to clients."""
    if request.state == "ended":
        return "finished" if request.succeeded else "failed"
    return _STATE_NAMES[request.state]
