"""Selects the worker for a request: filter, score, pick. Pure functions over worker views.

`route_query` holds what routing must know of a request, `ineligibility` filters workers and gives
reasons, `ttft_prediction` predicts the time to the first token on the others, `policies` pick one,
and `selection` combines them.
"""

from controller.routing.ineligibility import (
    TEMPORARY,
    Ineligibility,
    NoRoute,
    find_ineligibility,
    most_relevant_reason,
)
from controller.routing.policies import Policy, policy_named
from controller.routing.route_query import RouteQuery
from controller.routing.selection import RouteDecision, select_worker

__all__ = [
    "TEMPORARY",
    "Ineligibility",
    "NoRoute",
    "Policy",
    "RouteDecision",
    "RouteQuery",
    "find_ineligibility",
    "most_relevant_reason",
    "policy_named",
    "select_worker",
]
