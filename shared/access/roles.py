"""The NATS permissions of each role: the fewest that its work requires.

The server enforces them. It cannot check that a stream goes to an inbox of its client:
`shared.subjects.is_inbox` does.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from shared import subjects
from shared.subjects import (
    INBOX_PREFIX,
    LEADER_BUCKET,
    LEADER_KEY,
    RESPONSES_BUCKET,
    ROLLOUT_BUCKET,
    ROLLOUT_KEY,
    inbox_prefix,
)

Role = Literal["client", "gateway", "controller", "worker", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)

_SERVICE = ("$SRV.*", "$SRV.*.*", "$SRV.*.*.*")
"""The discovery subjects of NATS micro services."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Allowed subjects, with wildcards; all others are denied."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def permissions(role: Role, name: str) -> Permissions:
    """Return the permissions of the user `name` of a role.

    Args:
        name: of the client, worker or controller: part of its own subjects.
    """
    own = f"{inbox_prefix(role, name)}.>"
    match role:
        case "client":
            return Permissions(
                publish=(
                    own,
                    f"mlx.infer.{name}.*",
                    f"mlx.request.{name}.*",
                    f"mlx.route.{name}.*",
                    f"mlx.stream.*.{name}.resend",
                    "mlx.health.>",
                ),
                subscribe=(own,),
            )
        case "gateway":
            # Publishes for all of its clients, and receives their streams.
            return Permissions(
                publish=(
                    own,
                    f"{INBOX_PREFIX}.>",
                    "mlx.infer.*.*",
                    "mlx.request.*.*",
                    "mlx.route.*.*",
                    "mlx.stream.*.*.resend",
                    "mlx.health.>",
                    subjects.LIST_REQUESTS,
                    *(f"mlx.worker.*.control.{verb}" for verb in _GATEWAY_ORDERS),
                    *(subjects.rollout(verb) for verb in _GATEWAY_ROLLOUT_ORDERS),
                    f"mlx.log.gateway.{name}",
                    _inboxes("admin"),
                    subjects.stored_objects(RESPONSES_BUCKET),
                    *(subjects.object_stream(verb, RESPONSES_BUCKET) for verb in _OBJECT_VERBS),
                ),
                subscribe=(own, f"{INBOX_PREFIX}.>", subjects.RECENT_LOGS, *_SERVICE),
            )
        case "controller":
            return Permissions(
                publish=(
                    f"{INBOX_PREFIX}.>",
                    f"{subjects.INTERNAL_INBOX_PREFIX}.>",
                    "mlx.controller.*.transfer",
                    "mlx.worker.*.infer",
                    "mlx.worker.*.control.*",
                    "mlx.worker.*.*.alive",
                    f"mlx.event.controller.{name}",
                    "mlx.health.controller",
                    "mlx.health.controller.*",
                    f"mlx.log.controller.{name}",
                    subjects.key_value(LEADER_BUCKET, LEADER_KEY),
                    *(subjects.jetstream(verb, LEADER_BUCKET) for verb in _LEASE_VERBS),
                    subjects.key_value(ROLLOUT_BUCKET, ">"),
                    *(subjects.jetstream(verb, ROLLOUT_BUCKET) for verb in _ROLLOUT_VERBS),
                ),
                subscribe=(
                    own,
                    subjects.INFER_ALL,
                    subjects.REQUEST_ALL,
                    subjects.ROUTE_ALL,
                    subjects.LIST_REQUESTS,
                    subjects.WORKER_EVENT_ALL,
                    subjects.PREFIX_EVENT_ALL,
                    subjects.CONTROLLER_EVENT_ALL,
                    f"mlx.event.request.{name}.*",
                    f"mlx.controller.{name}.transfer",
                    "mlx.health.controller",
                    f"mlx.health.controller.{name}",
                    "mlx.health.cluster",
                    subjects.RECENT_LOGS,
                    subjects.key_value(LEADER_BUCKET, LEADER_KEY),
                    subjects.key_value(ROLLOUT_BUCKET, ROLLOUT_KEY),
                    subjects.rollout("*"),
                    *_SERVICE,
                ),
            )
        case "worker":
            return Permissions(
                publish=(
                    own,
                    f"{INBOX_PREFIX}.>",
                    _inboxes("controller"),
                    _inboxes("worker"),
                    _inboxes("admin"),
                    _inboxes("gateway"),
                    subjects.FIND_FILES,
                    f"mlx.event.worker.{name}",
                    f"mlx.event.kept.{name}",
                    f"mlx.event.request.*.{name}",
                    "mlx.request.*.status",
                    f"mlx.health.worker.{name}",
                    f"mlx.log.worker.{name}",
                    f"mlx.log.engine.{name}",
                ),
                subscribe=(
                    own,
                    f"mlx.worker.{name}.infer",
                    f"mlx.worker.{name}.control.*",
                    f"mlx.worker.{name}.*.alive",
                    f"mlx.stream.{name}.*.resend",
                    f"mlx.health.worker.{name}",
                    subjects.FIND_FILES,
                    subjects.RECENT_LOGS,
                    *_SERVICE,
                ),
            )
        case "admin":
            return Permissions(
                publish=(own, f"{INBOX_PREFIX}.{name}.>", "mlx.>", "$SRV.>", "$JS.API.>", "$KV.>"),
                subscribe=(own, f"{INBOX_PREFIX}.{name}.>", "mlx.log.*.*", "mlx.event.>"),
            )


_GATEWAY_ORDERS = ("load", "unload", "pin_model", "requests", "sessions", "pin", "forget")
_GATEWAY_ROLLOUT_ORDERS = ("show", "pause", "resume", "rollback")
"""What the gateway's page orders for keys with `admin`. It drains, claims and configures nobody."""

_LEASE_VERBS = ("INFO", "CREATE", "MSG.GET")
_ROLLOUT_VERBS = ("INFO", "CREATE", "MSG.GET")
_OBJECT_VERBS = ("INFO", "CREATE", "UPDATE", "MSG.GET", "PURGE")


def _inboxes(role: Role) -> str:
    """Return the inboxes of all users of a role."""
    return f"{inbox_prefix(role, '*')}.>"
