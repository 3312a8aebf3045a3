"""Every subject of the cluster: who publishes on it, who listens, and what it carries.

`SUBJECTS` is the one table; `docs/wire.md` prints it and tests hold the functions below to it.
"""

import re
from dataclasses import dataclass

from shared.ids import BootId, ClientName, ControllerId, SkillName, WorkerId

INBOX_PREFIX = "_INBOX"
"""Of the inboxes in which clients hear; each has its own name behind it."""
INTERNAL_INBOX_PREFIX = "_MLX"
"""Of the inboxes of everybody else; there no client can hear, where the server authenticates."""
_LITERAL = re.compile(r"[^ *>\t\r\n.]+(\.[^ *>\t\r\n.]+)*")
"""A subject without wildcards and empty tokens."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of the wire. `message` and `answer` name types of `shared.messages`."""

    pattern: str
    sender: str
    receiver: str
    message: str
    answer: str


SUBJECTS: tuple[Subject, ...] = (
    Subject("mlx.infer.<client>.<skill>", "client", "the leader",
            "InferenceRequest", "a stream of StreamMessage"),
    Subject("<inbox>", "worker or controller", "client", "StreamMessage", "none"),
    Subject("mlx.request.<client>.cancel", "client", "the leader", "RequestQuery", "RequestState"),
    Subject("mlx.request.<client>.status", "client", "the leader", "RequestQuery", "RequestState"),
    Subject("mlx.route.<client>.<skill>", "client", "the leader",
            "InferenceRequest", "RouteAnswer"),
    Subject("mlx.stream.<worker>.<client>.resend", "client", "worker",
            "ResendQuery", "ResendState, then the chunks"),
    Subject("mlx.controller.<controller>.transfer", "the leader that leaves", "the next leader",
            "Transfer", "TransferReply"),
    Subject("mlx.worker.<worker>.infer", "the leader", "worker", "DispatchBatch", "DispatchReply"),
    Subject("mlx.worker.<worker>.control.<verb>", "operator, controller", "worker",
            "ControlOrder", "ControlReply"),
    Subject("mlx.worker.<worker>.<boot>.alive", "controller", "worker", "empty", "empty"),
    Subject("mlx.files.find", "worker", "every worker", "FindFiles", "FilesOffer"),
    Subject("mlx.event.worker.<worker>", "worker", "all controllers", "WorkerEvent", "none"),
    Subject("mlx.event.kept.<worker>", "worker", "all controllers", "KeptPrefixes", "none"),
    Subject("mlx.event.controller.<controller>", "controller", "all controllers",
            "ControllerEvent", "none"),
    Subject("mlx.event.request.<controller>", "worker", "the leader", "RequestEvents", "none"),
    Subject("$KV.mlx_leader.controller", "controller", "JetStream, all controllers",
            "LeaseRecord", "PubAck"),
    Subject("mlx.rollout.<verb>", "operator", "every controller; the leader answers",
            "RolloutOrder", "RolloutReply"),
    Subject("$KV.mlx_rollout.state", "leading controller", "JetStream, all controllers",
            "RolloutState", "PubAck"),
    Subject("$KV.mlx_rollout.version.<number>", "leading controller", "JetStream",
            "Version", "PubAck"),
    Subject("mlx.health.controller", "anyone", "every controller", "empty", "ControllerHealth"),
    Subject("mlx.health.controller.<controller>", "anyone", "controller",
            "empty", "ControllerHealth"),
    Subject("mlx.health.worker.<worker>", "anyone", "worker", "empty", "WorkerHealth"),
    Subject("mlx.health.cluster", "anyone", "the leader", "empty", "ClusterHealth"),
    Subject("mlx.log.<kind>.<id>", "every process", "anyone", "LogRecord", "none"),
    Subject("mlx.logs.recent", "anyone", "every process", "RecentLogsQuery", "RecentLogs"),
)  # fmt: skip

INFER_ALL = "mlx.infer.*.*"
REQUEST_ALL = "mlx.request.*.*"
ROUTE_ALL = "mlx.route.*.*"
WORKER_EVENT_ALL = "mlx.event.worker.*"
KEPT_EVENT_ALL = "mlx.event.kept.*"
CONTROLLER_EVENT_ALL = "mlx.event.controller.*"
HEALTH_CONTROLLERS = "mlx.health.controller"
HEALTH_CLUSTER = "mlx.health.cluster"
LOG_ALL = "mlx.log.*.*"
RECENT_LOGS = "mlx.logs.recent"
FIND_FILES = "mlx.files.find"
LEADER_BUCKET = "mlx_leader"
LEADER_KEY = "controller"
"""What JetStream keeps of who leads: a bucket of its own, because the lease counts its sequence."""

ROLLOUT_BUCKET = "mlx_rollout"
ROLLOUT_KEY = "state"
"""What JetStream keeps of what is rolled out; the versions stand beside it."""


RESPONSES_BUCKET = "mlx_responses"
"""What JetStream keeps of what gateways have stored for their clients: an object store."""


def rollout_version(number: int) -> str:
    """The key in the bucket of roll-outs."""
    return f"version.{number}"


def kept(bucket: str, key: str) -> str:
    """What JetStream keeps in a bucket under a key."""
    return f"$KV.{bucket}.{key}"


def jetstream(verb: str, bucket: str) -> str:
    """The server's own subject for a verb about the stream of a bucket."""
    return f"$JS.API.STREAM.{verb}.KV_{bucket}"


def stored_objects(bucket: str) -> str:
    """Where the chunks and descriptions of an object store's values go."""
    return f"$O.{bucket}.>"


def object_stream(verb: str, bucket: str) -> str:
    """As `jetstream`, of an object store."""
    return f"$JS.API.STREAM.{verb}.OBJ_{bucket}"


def infer(client: ClientName, skill: SkillName) -> str:
    return f"mlx.infer.{client}.{skill}"


def route(client: ClientName, skill: SkillName) -> str:
    return f"mlx.route.{client}.{skill}"


def parse_infer(subject: str) -> tuple[ClientName, SkillName]:
    """The client and skill that an `mlx.infer.<client>.<skill>`, or `mlx.route...`, names."""
    _, _, client, skill = subject.split(".")
    return ClientName(client), SkillName(skill)


def request(client: ClientName, verb: str) -> str:
    return f"mlx.request.{client}.{verb}"


def parse_request(subject: str) -> tuple[ClientName, str]:
    """The client and verb that an `mlx.request.<client>.<verb>` names."""
    _, _, client, verb = subject.split(".")
    return ClientName(client), verb


def resend_all(worker: WorkerId) -> str:
    """The `resend` of every client's streams on one worker."""
    return f"mlx.stream.{worker}.*.resend"


def parse_resend(subject: str) -> ClientName:
    """The client that an `mlx.stream.<worker>.<client>.resend` names."""
    return ClientName(subject.split(".")[3])


def resend(worker: WorkerId, client: ClientName) -> str:
    return f"mlx.stream.{worker}.{client}.resend"


def controller_transfer(controller: ControllerId) -> str:
    return f"mlx.controller.{controller}.transfer"


def worker_infer(worker: WorkerId) -> str:
    return f"mlx.worker.{worker}.infer"


def worker_control(worker: WorkerId, verb: str) -> str:
    return f"mlx.worker.{worker}.control.{verb}"


def parse_worker_control(subject: str) -> str:
    """The verb that an `mlx.worker.<worker>.control.<verb>` names."""
    return subject.rsplit(".", 1)[1]


def worker_alive(worker: WorkerId, boot: BootId) -> str:
    return f"mlx.worker.{worker}.{boot}.alive"


def worker_event(worker: WorkerId) -> str:
    return f"mlx.event.worker.{worker}"


def kept_event(worker: WorkerId) -> str:
    return f"mlx.event.kept.{worker}"


def controller_event(controller: ControllerId) -> str:
    return f"mlx.event.controller.{controller}"


def request_event(controller: ControllerId) -> str:
    return f"mlx.event.request.{controller}"


def controller_health(controller: ControllerId) -> str:
    return f"mlx.health.controller.{controller}"


def rollout(verb: str) -> str:
    return f"mlx.rollout.{verb}"


def worker_health(worker: WorkerId) -> str:
    return f"mlx.health.worker.{worker}"


def log(kind: str, identity: str) -> str:
    return f"mlx.log.{kind}.{identity}"


def inbox_prefix(role: str, name: str) -> str:
    """Under which somebody hears answers."""
    if role == "client":
        return f"{INBOX_PREFIX}.{name}"
    return f"{INTERNAL_INBOX_PREFIX}.{role}.{name}"


def is_any_inbox(subject: str) -> bool:
    """Whether it is the inbox of anybody. Answers go nowhere else: on a subject of the cluster an
    answer would be an order, given with the permissions of who answers."""
    inboxes = subject.startswith((f"{INBOX_PREFIX}.", f"{INTERNAL_INBOX_PREFIX}."))
    return inboxes and _LITERAL.fullmatch(subject) is not None


def may_hear(subject: str, client: ClientName, *, strict: bool) -> bool:
    """Whether the answer to a question in the name of a client may be sent to `subject`: an inbox
    of its own, or of one of the cluster's own processes, which ask in the name of many."""
    if subject.startswith(f"{INTERNAL_INBOX_PREFIX}."):
        return is_any_inbox(subject)
    return is_inbox(subject, client, strict=strict)


def is_inbox(subject: str, client: ClientName, *, strict: bool) -> bool:
    """Whether a stream may be sent to `subject` (the inbox rule).

    Args:
        strict: where the server authenticates, the inbox must be the client's own.
    """
    prefix = f"{INBOX_PREFIX}.{client}." if strict else f"{INBOX_PREFIX}."
    if not subject.startswith(prefix):
        return False
    return _LITERAL.fullmatch(subject) is not None
