"""Validation of client messages: a request, or an error that names the field."""

from controller.requests.request import TrackedRequest
from controller.requests.skills import Skills, models_of
from shared import subjects
from shared.bus import IncomingMessage
from shared.errors import ClusterError, InvalidRequest, RequestError
from shared.ids import is_name, new_request_id
from shared.messages.dispatch import default_seed
from shared.messages.request_parsing import RequestHeader, parse_measured
from shared.messages.stream import ErrorDetails, FailedMessage


def read_request(
    message: IncomingMessage, skills: Skills, *, max_bytes: int, now: float
) -> TrackedRequest:
    """Return the request in a message on `mlx.infer.<client>.<skill>`.

    Args:
        max_bytes: a quarter of the maximum payload of the server, so that the request still fits
            into a message with other dispatches.

    Raises:
        RequestError: the request is invalid; `param` names the field.
    """
    client, skill = subjects.parse_infer(message.subject)
    for token, name in (("client", client), ("skill", skill)):
        if not is_name(name):
            raise InvalidRequest(f"the {token} in the subject must match [A-Za-z0-9_-]{{1,64}}")
    if len(message.payload) > max_bytes:
        raise RequestError(
            f"the request has {len(message.payload)} bytes; at most {max_bytes} are accepted",
            code="payload_too_large",
        )
    request, outline = parse_measured(message.payload)
    request_id = request.request_id or new_request_id()
    tracked = TrackedRequest.arrived(
        client,
        skill,
        [message.reply],
        request,
        models_of(skill, request.model, skills),
        request_id=request_id,
        seed=request.seed if request.seed is not None else default_seed(client, request_id),
        now=now,
        payload=message.payload,
    )
    tracked.memory_bytes = len(message.payload) + outline.memory_bytes
    return tracked


def rejection(header: RequestHeader, error: ClusterError, attempt: int) -> FailedMessage:
    """Return the terminal message of a request that was not accepted."""
    return FailedMessage(header.request_id, attempt, None, ErrorDetails.from_exception(error))
