"""A routing decision as a `Route`, for people and programs."""

from controller.routing import NoRoute, RouteDecision, RouteQuery
from controller.routing.policies import Candidate
from shared.ids import ControllerId, SkillName
from shared.messages.routes import IneligibleWorker, Route, RouteCandidate, TTFTForecastMs

_MAX_LISTED = 50


def explained(
    controller: ControllerId,
    policy: str,
    skill: SkillName,
    query: RouteQuery,
    decision: RouteDecision | NoRoute,
) -> Route:
    """Return a decision and its reasons; the chosen worker is the first candidate."""
    listed = sorted(decision.ineligibilities.items())[:_MAX_LISTED]
    ineligible = [
        IneligibleWorker(
            worker=worker, code=each.code, reason=each.reason, retry_after_ms=each.retry_after_ms
        )
        for worker, each in listed
    ]
    others_out = len(decision.ineligibilities) - len(listed)
    route = Route(
        controller=controller,
        policy=policy,
        skill=skill,
        reason=decision.message if isinstance(decision, NoRoute) else decision.reason,
        home=query.home,
        out=ineligible,
        others_out=others_out,
    )
    if isinstance(decision, NoRoute):
        return route
    chosen = {"model": decision.model, "worker": decision.worker.id}
    return route.model_copy(update={**chosen, "candidates": _candidates(decision)})


def _candidates(decision: RouteDecision) -> list[RouteCandidate]:
    chosen = decision.chosen

    def order(candidate: Candidate) -> tuple[bool, float]:
        return candidate is not chosen, candidate.ttft.total_ms

    return [_candidate(each) for each in sorted(decision.candidates, key=order)][:_MAX_LISTED]


def _candidate(candidate: Candidate) -> RouteCandidate:
    forecast, view = candidate.ttft, candidate.worker
    return RouteCandidate(
        worker=view.id,
        state=candidate.status.state,
        load=round(candidate.load, 3),
        requests=view.load,
        kept=round(candidate.cached.share, 4),
        tier=candidate.cached.tier if candidate.cached.share else None,
        forecast_ms=TTFTForecastMs(
            load=round(forecast.load_ms, 2),
            wait=round(forecast.wait_ms, 2),
            restore=round(forecast.restore_ms, 2),
            prefill=round(forecast.prefill_ms, 2),
            step=round(forecast.step_ms, 2),
            total=round(forecast.total_ms, 2),
        ),
    )
