"""A decision of the routing, in words that people and programs read."""

from controller.routing import NoRoute, RouteDecision, RouteQuery
from controller.routing.policies import Candidate
from shared.ids import ControllerId, SkillName
from shared.messages.routes import ForecastMs, Route, RouteCandidate, RouteObstacle

_MOST_LISTED = 50


def explained(
    controller: ControllerId,
    policy: str,
    skill: SkillName,
    query: RouteQuery,
    decided: RouteDecision | NoRoute,
) -> Route:
    """What was decided for a need, and why; the chosen one stands first."""
    listed = sorted(decided.ineligibilities.items())[:_MOST_LISTED]
    out = [
        RouteObstacle(
            worker=worker, code=each.code, reason=each.reason, retry_after_ms=each.retry_after_ms
        )
        for worker, each in listed
    ]
    others_out = len(decided.ineligibilities) - len(listed)
    route = Route(
        controller=controller,
        policy=policy,
        skill=skill,
        reason=decided.message if isinstance(decided, NoRoute) else decided.reason,
        home=query.home,
        out=out,
        others_out=others_out,
    )
    if isinstance(decided, NoRoute):
        return route
    chosen = {"model": decided.model, "worker": decided.worker.id}
    return route.model_copy(update={**chosen, "candidates": _candidates(decided)})


def _candidates(decision: RouteDecision) -> list[RouteCandidate]:
    chosen = decision.chosen

    def order(candidate: Candidate) -> tuple[bool, float]:
        return candidate is not chosen, candidate.forecast.total_ms

    return [_candidate(each) for each in sorted(decision.candidates, key=order)][:_MOST_LISTED]


def _candidate(candidate: Candidate) -> RouteCandidate:
    forecast, view = candidate.forecast, candidate.worker
    return RouteCandidate(
        worker=view.id,
        state=candidate.status.state,
        load=round(candidate.load, 3),
        requests=view.load,
        kept=round(candidate.kept.share, 4),
        tier=candidate.kept.tier if candidate.kept.share else None,
        forecast_ms=ForecastMs(
            load=round(forecast.load_ms, 2),
            wait=round(forecast.wait_ms, 2),
            restore=round(forecast.restore_ms, 2),
            prefill=round(forecast.prefill_ms, 2),
            step=round(forecast.step_ms, 2),
            total=round(forecast.total_ms, 2),
        ),
    )
