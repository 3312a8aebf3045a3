"""Which worker serves a request: filter, score, pick. Pure functions over worker views.

`route_query` is what routing knows of a request, `ineligibility` says which workers are out and
why, `ttft_prediction` how long the others take to the first token, `policies` pick one, and
`selection` combines them.
"""

from controller.routing.ineligibility import (
    TEMPORARY,
    Ineligibility,
    NoRoute,
    find_ineligibility,
    nearest,
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
    "nearest",
    "policy_named",
    "select_worker",
]
