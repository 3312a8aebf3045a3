"""The attributes of a request's span. Never what the client wrote or the model answered."""

from controller.requests.request import TrackedRequest
from shared.messages.request import InferenceRequest
from shared.telemetry import gen_ai
from shared.telemetry.span import AttributeValue


def request_attributes(request: TrackedRequest, outcome: str) -> dict[str, AttributeValue]:
    """
    Args:
        outcome: the error code, `ok`, `cancelled` or `lost`.
    """
    attributes: dict[str, AttributeValue] = {
        "mlx.request_id": request.request_id,
        "mlx.client": request.client,
        "mlx.skill": request.skill,
        "mlx.outcome": outcome,
        "mlx.failed_attempts": request.failures.count,
        gen_ai.PROVIDER: gen_ai.PROVIDER_NAME,
    }
    body = request.request
    if body is not None:
        attributes[gen_ai.OPERATION] = operation(body)
        attributes[gen_ai.REQUEST_MODEL] = body.model or request.models[0]
    if request.model is not None:
        attributes[gen_ai.RESPONSE_MODEL] = request.model
    if request.session is not None:
        attributes[gen_ai.CONVERSATION] = request.session[1]
    if request.tokens:
        attributes[gen_ai.OUTPUT_TOKENS] = request.tokens
    return attributes


def operation(body: InferenceRequest) -> str:
    return gen_ai.operation_name(
        {
            "count_only": body.count_only,
            "input": body.input,
            "query": body.query,
            "messages": body.messages,
        }
    )
