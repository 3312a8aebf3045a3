"""Why a request went where it went: what `cluster route` shows, and who asks with `debug` gets."""

from shared.codec import InternalMessage, InternalPart
from shared.ids import ControllerId, ModelId, SkillName, WorkerId
from shared.messages.events import Tier


class ForecastMs(InternalPart):
    """Predicted milliseconds to the first token: until the model is loaded, for a place in a batch
    or the prompts that were there before, to restore what is kept, to compute the rest of the
    prompt, for the first step; and all together."""

    load: float
    wait: float
    restore: float
    prefill: float
    step: float
    total: float


class RouteCandidate(InternalPart):
    """A worker that could serve a request.

    Attributes:
        load: the share of its places in batches that are taken; over 1 requests wait.
        requests: that it has, as far as known.
        kept: the share of the prompt that it keeps, and where.
    """

    worker: WorkerId
    state: str
    load: float
    requests: int
    kept: float = 0.0
    tier: Tier | None = None
    forecast_ms: ForecastMs


class RouteObstacle(InternalPart):
    """A worker that could not, and why; `code` is a key of `errors.ERROR_CODES`."""

    worker: WorkerId
    code: str
    reason: str
    retry_after_ms: int | None = None


class Route(InternalPart):
    """How a controller chose.

    Attributes:
        model, worker: what was chosen; None where there was nobody.
        reason: why this one; of nobody, why not.
        home: the worker that served the session last.
        candidates: that were compared, the chosen one first, then the soonest; of many workers
            some.
        out: workers that were looked at and could not serve it.
        others_out: so many more.
    """

    controller: ControllerId
    policy: str
    skill: SkillName
    model: ModelId | None = None
    worker: WorkerId | None = None
    reason: str
    home: WorkerId | None = None
    candidates: list[RouteCandidate] = []
    out: list[RouteObstacle] = []
    others_out: int = 0


class RouteAnswer(InternalMessage):
    """A controller's answer to a request on `mlx.route.<client>.<skill>`, which it does not serve:
    the route that it would take now, or what is wrong with it."""

    route: Route | None = None
    code: str | None = None
    message: str | None = None
    param: str | None = None
