"""Explanations of routing decisions, for `cluster route` and requests with `debug`."""

from shared.codec import WireMessage, WireMessagePart
from shared.ids import ControllerId, ModelId, SkillName, WorkerId
from shared.messages.events import Tier


class TTFTForecastMs(WireMessagePart):
    """Predicted milliseconds to the first token: to load the model, to wait for a slot or for
    earlier prompts, to restore the cached prefix, to compute the rest of the prompt, for the first
    step; and their total."""

    load: float
    wait: float
    restore: float
    prefill: float
    step: float
    total: float


class RouteCandidate(WireMessagePart):
    """A worker that could serve a request.

    Attributes:
        load: the share of its slots in batches that are used; above 1 requests wait.
        requests: number of its requests, as far as known.
        kept: the share of the prompt that is cached; `tier` says where.
    """

    worker: WorkerId
    state: str
    load: float
    requests: int
    kept: float = 0.0
    tier: Tier | None = None
    forecast_ms: TTFTForecastMs


class IneligibleWorker(WireMessagePart):
    """An ineligible worker, and the reason; `code` is a key of `errors.ERROR_CODES`."""

    worker: WorkerId
    code: str
    reason: str
    retry_after_ms: int | None = None


class Route(WireMessagePart):
    """The routing decision of a controller.

    Attributes:
        model, worker: the selection; None if no worker was eligible.
        reason: why this worker, or why none.
        home: the worker that served the previous turn of the session.
        candidates: the eligible workers, the selected one first, then by predicted TTFT; some of
            them if there are many.
        out: ineligible workers.
        others_out: number of further ineligible workers.
    """

    controller: ControllerId
    policy: str
    skill: SkillName
    model: ModelId | None = None
    worker: WorkerId | None = None
    reason: str
    home: WorkerId | None = None
    candidates: list[RouteCandidate] = []
    out: list[IneligibleWorker] = []
    others_out: int = 0


class RouteAnswer(WireMessage):
    """The reply to a request on `mlx.route.<client>.<skill>`, which is not served: the route that
    the request would take now, or its error."""

    route: Route | None = None
    code: str | None = None
    message: str | None = None
    param: str | None = None
