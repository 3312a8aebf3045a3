"""Lists the requests of the leader. A pure function."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from controller.requests.request import TrackedRequest
from shared.ids import ControllerId
from shared.messages.request_list import RequestList, RequestListQuery, RequestSummary


def list_requests(
    requests: Iterable[TrackedRequest],
    query: RequestListQuery,
    controller: ControllerId,
    now: float,
) -> RequestList:
    """
    Args:
        requests: that have not ended, in the order of arrival.
    """
    selected = [
        request
        for request in requests
        if request.part_of is None and query.client in (None, request.client)
    ]
    # Sorting is stable: within both groups the order of arrival remains.
    ordered = sorted(selected, key=lambda request: request.state != "running")
    return RequestList(
        controller=controller,
        total=len(selected),
        states=dict(Counter(request.state for request in selected)),
        requests=[_summary(request, now) for request in islice(ordered, query.limit)],
    )


def _summary(request: TrackedRequest, now: float) -> RequestSummary:
    has_worker = request.state in ("offered", "running", "delegated")
    return RequestSummary(
        client=request.client,
        request_id=request.request_id,
        skill=request.skill,
        model=request.model or request.models[0],
        priority=request.level if request.request is not None else None,
        state=request.state,
        reason=None if has_worker else request.reason,
        worker=request.worker,
        attempt=request.attempt,
        migrations=request.failures.migrations,
        failed_workers=sorted(request.failures.workers),
        tokens=request.tokens,
        elapsed_ms=round(request.elapsed_ms(now), 1),
        session_id=request.session[1] if request.session is not None else None,
    )
