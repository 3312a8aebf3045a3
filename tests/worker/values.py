"""Values for tests: dispatches and requests on a worker with short names."""

from typing import Any

from shared.ids import ClientName, ControllerId, ModelId, RequestId, SkillName, WorkerId
from shared.messages.dispatch import Continuation, Dispatch
from shared.messages.request import InferenceRequest
from worker.requests.active_request import ActiveRequest

CLIENT = ClientName("local")
OWNER = ControllerId("by-hand")
MAC = WorkerId("mac")
TINY = ModelId("tiny")


def dispatched(
    request_id: str = "r",
    *inboxes: str,
    attempt: int = 0,
    client: ClientName = CLIENT,
    goes_on: Continuation | None = None,
    **fields: Any,
) -> Dispatch:
    """A dispatch; `fields` are those of the request, `goes_on` is its own `resume`."""
    return Dispatch(
        request_id=RequestId(request_id),
        client=client,
        skill=SkillName("chat"),
        model=TINY,
        attempt=attempt,
        inboxes=list(inboxes) or [f"_INBOX.{request_id}"],
        seed=1,
        elapsed_ms=0.0,
        request=InferenceRequest.model_validate({"prompt": "Hello", **fields}),
        resume=goes_on,
    )


def active(request_id: str = "r", *inboxes: str, **fields: Any) -> ActiveRequest:
    """A request on the worker MAC."""
    return ActiveRequest(dispatched(request_id, *inboxes, **fields), OWNER, MAC, [1])
