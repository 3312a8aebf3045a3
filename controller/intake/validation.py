"""What a client sent, validated: a request, or the error that says what is wrong."""

from controller.requests.request import ClientRequest
from controller.requests.skills import Skills, models_of
from shared import subjects
from shared.bus import BusMessage
from shared.errors import ClusterError, InvalidRequest, RequestError
from shared.ids import is_name, new_request_id
from shared.messages.request import default_seed
from shared.messages.request_parsing import Claims, parse_request
from shared.messages.stream import Failed, StreamError


def read_request(
    message: BusMessage, skills: Skills, *, max_bytes: int, now: float
) -> ClientRequest:
    """The request in a message on `mlx.infer.<client>.<skill>`.

    Args:
        max_bytes: a quarter of what the server accepts, so that it still fits when it is
            dispatched with others.

    Raises:
        RequestError: something is wrong with it; `param` names the field.
    """
    client, skill = subjects.parse_infer(message.subject)
    for what, name in (("client", client), ("skill", skill)):
        if not is_name(name):
            raise InvalidRequest(f"the {what} in the subject must match [A-Za-z0-9_-]{{1,64}}")
    if len(message.payload) > max_bytes:
        raise RequestError(
            f"the request has {len(message.payload)} bytes; at most {max_bytes} are taken",
            code="payload_too_large",
        )
    request = parse_request(message.payload)
    request_id = request.request_id or new_request_id()
    return ClientRequest.arrived(
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


def rejection(payload: bytes, error: ClusterError, attempt: int) -> Failed:
    """The terminal message of a request that was not accepted."""
    return Failed(Claims.of(payload).request_id, attempt, None, StreamError.from_exception(error))
