"""What a client sent, checked: an owned request, or the error that says what is wrong."""

from collections.abc import Mapping

from controller.owned_request import OwnedRequest
from shared import subjects
from shared.bus import Message
from shared.errors import ClusterError, InvalidRequest, RequestError
from shared.ids import ClientName, ModelId, SkillName, is_name, new_request_id
from shared.messages.request import Claims, InferenceRequest, default_seed, parse_request
from shared.messages.stream import Failed, StreamError

Skills = Mapping[SkillName, list[ModelId]]


def may_answer(message: Message, client: ClientName, *, strict: bool) -> bool:
    """Whether the reply subject is an inbox that this client may name.

    A request without one, or with another's, gets no answer at all: there is nowhere safe to
    send it.
    """
    return bool(message.reply) and subjects.is_inbox(message.reply, client, strict=strict)


def read_request(message: Message, skills: Skills, *, max_bytes: int) -> OwnedRequest:
    """The request in a message on `mlx.infer.<client>.<skill>`.

    Args:
        max_bytes: a quarter of what the server takes, so that it still fits when it is
            dispatched with company.

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
    owned = own_request(client, skill, message.reply, parse_request(message.payload), skills)
    owned.body = message.payload
    return owned


def own_request(
    client: ClientName,
    skill: SkillName,
    reply: str,
    request: InferenceRequest,
    skills: Skills,
    *,
    elapsed_before_ms: float = 0.0,
) -> OwnedRequest:
    """A checked request as this controller will keep it.

    Raises:
        RequestError: the skill is unknown, or does not have the model.
    """
    request_id = request.request_id or new_request_id()
    seed = request.seed if request.seed is not None else default_seed(client, request_id)
    return OwnedRequest(
        request_id=request_id,
        client=client,
        skill=skill,
        inboxes=[reply],
        request=request,
        models=_models(skill, request.model, skills),
        seed=seed,
        elapsed_before_ms=elapsed_before_ms,
    )


def rejection(payload: bytes, error: ClusterError) -> Failed:
    """The terminal message of a request that was not accepted."""
    return Failed(Claims.of(payload).request_id, 0, None, stream_error(error))


def stream_error(error: ClusterError) -> StreamError:
    return StreamError(
        error.code, error.message, error.param, error.retryable, error.retry_after_ms
    )


def _models(skill: SkillName, named: str | None, skills: Skills) -> list[ModelId]:
    if skill not in skills:
        known = ", ".join(sorted(skills))
        raise RequestError(f"no skill {skill!r}; there are: {known}", code="unknown_skill")
    models = skills[skill]
    if named is None:
        return models
    if named not in models:
        raise RequestError(
            f"model: the skill {skill!r} has no model {named!r}; it has: {', '.join(models)}",
            code="unknown_model",
            param="model",
        )
    return [ModelId(named)]
