"""Which worker serves a request: filter, score, pick. Pure functions over worker views.

`need` says what a request asks for, `obstacles` who is out and why, `forecast` how long the others
would take to the first token, `policies` who is picked of them, and `choice` puts it together.
"""

from controller.routing.choice import Decision, choose
from controller.routing.need import Need
from controller.routing.obstacles import PASSING, NoRoute, Obstacle, find_obstacle
from controller.routing.policies import Policy, policy_named

__all__ = [
    "PASSING",
    "Decision",
    "Need",
    "NoRoute",
    "Obstacle",
    "Policy",
    "choose",
    "find_obstacle",
    "policy_named",
]
