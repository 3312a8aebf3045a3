"""The list of the requests that the leader has, and what their workers do with them."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from shared.codec import WireMessage, WireMessagePart
from shared.ids import (
    NAME_PATTERN,
    ClientName,
    ControllerId,
    ModelId,
    RequestId,
    SkillName,
    WorkerId,
)
from shared.messages.base import Count, Priority
from shared.messages.stream import StatusName

MAX_LISTED = 1000
Limit = Annotated[int, Field(ge=1, le=MAX_LISTED)]


class RequestListQuery(BaseModel):
    """Queries the requests that have not ended: of one client, or of all."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    client: ClientName | None = Field(None, pattern=NAME_PATTERN)
    limit: Limit = 200


class RequestSummary(WireMessagePart):
    """One request that has not ended.

    Attributes:
        model: the one that its worker uses; before, the first one that can serve it.
        state: of the leader: `waiting`, `fetching`, `queued`, `offered`, `running`, `backing_off`
            or `delegated` (a list of prompts, served in parts).
        reason: why no worker has it.
        failed_workers: workers on which an attempt failed.
        tokens: number of emitted tokens of all choices.
        elapsed_ms: since the cluster accepted it.
    """

    client: ClientName
    request_id: RequestId
    skill: SkillName
    model: ModelId
    priority: Priority | None = None
    state: str
    reason: str | None = None
    worker: WorkerId | None = None
    attempt: Count = 0
    migrations: Count = 0
    failed_workers: list[WorkerId] = []
    tokens: Count = 0
    elapsed_ms: float = 0.0
    session_id: str | None = None


class RequestList(WireMessage):
    """The requests of the leader that have not ended; a list of prompts counts once.

    Attributes:
        total: the number of all requests, also of those that are not listed.
        states: their number by state.
        requests: the running ones first, then in the order of arrival; as many as fit.
        message: why a query is invalid.
    """

    controller: ControllerId
    total: Count = 0
    states: dict[str, Count] = {}
    requests: list[RequestSummary] = []
    message: str | None = None


class RequestActivity(WireMessagePart):
    """What a worker does with a request.

    Attributes:
        progress: of loading its model or of the prefill, 0 to 1.
        prompt_tokens: of its first prompt; 0 while unknown.
    """

    client: ClientName
    request_id: RequestId
    attempt: Count
    model: ModelId
    status: StatusName
    progress: float | None = None
    tokens: Count = 0
    prompt_tokens: Count = 0
