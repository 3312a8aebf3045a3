"""The requests of the leader as rows of the view `requests`; also the rows of `sessions`."""

from collections.abc import Iterable, Mapping
from typing import Any

from controller.gateway.live.table import Row
from shared.ids import ClientName, RequestId, WorkerId
from shared.messages.control import SessionStatus
from shared.messages.request_list import RequestActivity, RequestList, RequestSummary

RequestKey = tuple[ClientName, RequestId]

_RATE_WEIGHT = 0.5
"""Of the newest sample in a request's rate."""


class RequestRates:
    """Tokens per second of requests, from how many tokens they had in each poll."""

    def __init__(self) -> None:
        self._samples: dict[RequestKey, tuple[float, int, float]] = {}

    def record(self, requests: Iterable[RequestSummary], now: float) -> None:
        """Record the tokens of all listed requests; others are forgotten."""
        before, self._samples = self._samples, {}
        for request in requests:
            key = request.client, request.request_id
            at, tokens, rate = before.get(key, (now, request.tokens, 0.0))
            if now > at:
                newest = max(0, request.tokens - tokens) / (now - at)
                rate = newest if not rate else rate + _RATE_WEIGHT * (newest - rate)
            self._samples[key] = now, request.tokens, rate

    def of(self, request: RequestSummary) -> float:
        """Return the rate of a recorded request."""
        return round(self._samples[request.client, request.request_id][2], 1)


def request_rows(
    listed: RequestList, activities: Mapping[RequestKey, RequestActivity], rates: RequestRates
) -> dict[str, Row]:
    """Return a row for each listed request.

    Args:
        activities: what workers do with requests, as far as they were asked.
        rates: recorded with the same list.
    """
    return {
        f"{request.client}/{request.request_id}": _request(
            request, activities.get((request.client, request.request_id)), rates.of(request)
        )
        for request in listed.requests
    }


def _request(
    request: RequestSummary, activity: RequestActivity | None, rate: float
) -> dict[str, Any]:
    if activity is not None and activity.attempt != request.attempt:
        activity = None
    return {
        "client": request.client,
        "id": request.request_id,
        "skill": request.skill,
        "model": request.model,
        "priority": request.priority,
        "state": request.state,
        "status": activity.status if activity else None,
        "progress": activity.progress if activity else None,
        "reason": request.reason,
        "worker": request.worker,
        "attempt": request.attempt,
        "migrations": request.migrations,
        "moved_from": (", ".join(request.failed_workers) or None) if request.migrations else None,
        "tokens": max(request.tokens, activity.tokens if activity else 0),
        "tokens_per_s": rate,
        "elapsed_ms": int(request.elapsed_ms),
        "session_id": request.session_id,
    }


def session_rows(sessions: Mapping[WorkerId, Iterable[SessionStatus]]) -> dict[str, Row]:
    """Return a row for each session of each worker, the most recently used ones first."""
    listed = [(worker, each) for worker, of_worker in sessions.items() for each in of_worker]
    listed.sort(key=lambda each: each[1].idle_s)
    return {
        f"{worker}/{session.client}/{session.id}": {
            "client": session.client,
            "session_id": session.id,
            "worker": worker,
            "model": session.model,
            "turns": session.turns,
            "active": session.active,
            "continuable": session.continuable,
            "pinned": session.pinned,
            "cached_tokens": session.tokens,
            "tokens": session.text_tokens,
            "bytes": session.memory_bytes + session.disk_bytes,
            "idle_s": int(session.idle_s // 5 * 5),
        }
        for worker, session in listed
    }
