"""Every subject of the cluster, with its publisher, its subscriber and its message type.

`SUBJECTS` is the one table; `docs/wire.md` prints it, and tests check the functions below with it.
"""

import re
from dataclasses import dataclass
from typing import Literal

from shared.errors import InvalidSubject
from shared.ids import BootId, ClientName, ControllerId, SkillName, WorkerId, is_name

INBOX_PREFIX = "_INBOX"
"""Prefix of the inboxes of clients, followed by the name of the client."""
INTERNAL_INBOX_PREFIX = "_MLX"
"""Prefix of all other inboxes; a server with authentication lets no client subscribe to them."""
MAX_INBOX_CHARACTERS = 256
"""An inbox stands in the protocol lines of what is sent to it, and in the reply subjects of probes:
a server ends a connection for a line of more than 4,096 bytes."""
_INBOX = re.compile(r"[!-)+-\-/-=?-~]+(\.[!-)+-\-/-=?-~]+)*")
"""A subject of visible ASCII characters, without wildcards or empty tokens. Servers forward others,
but not every client reads them as the same subject."""


_OF_A_CLIENT = re.compile(r"mlx\.(?:(?:infer|request|route)\.|stream\.[^.]*\.)([^.]*)\.")


Process = tuple[Literal["worker", "controller"], str]
"""The kind and the name of a process."""


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
    Subject("mlx.requests.list", "operator, gateway", "the leader",
            "RequestListQuery", "RequestList"),
    Subject("mlx.route.<client>.<skill>", "client", "the leader",
            "InferenceRequest", "RouteAnswer"),
    Subject("mlx.stream.<worker>.<client>.resend", "client", "worker",
            "ResendQuery", "ResendState, then the chunks"),
    Subject("mlx.controller.<controller>.transfer", "the leader that shuts down", "the next leader",
            "Transfer", "TransferReply"),
    Subject("mlx.worker.<worker>.infer", "the leader", "worker", "DispatchBatch", "DispatchReply"),
    Subject("mlx.worker.<worker>.control.<verb>", "operator, controller, gateway", "worker",
            "ControlOrder", "ControlReply"),
    Subject("mlx.worker.<worker>.<boot>.alive", "controller", "worker", "empty", "empty"),
    Subject("mlx.files.find", "worker", "every worker", "FindFiles", "FilesOffer"),
    Subject("mlx.event.worker.<worker>", "worker", "all controllers", "WorkerEvent", "none"),
    Subject("mlx.event.kept.<worker>", "worker", "all controllers", "KeptPrefixes", "none"),
    Subject("mlx.event.controller.<controller>", "controller", "all controllers",
            "ControllerEvent", "none"),
    Subject("mlx.event.request.<controller>.<worker>", "worker", "the leader",
            "RequestEvents", "none"),
    Subject("$KV.mlx_leader.controller", "controller", "JetStream, all controllers",
            "LeaseRecord", "PubAck"),
    Subject("mlx.rollout.<verb>", "operator, gateway", "every controller; the leader answers",
            "RolloutOrder", "RolloutReply"),
    Subject("$KV.mlx_rollout.state", "the leader", "JetStream, all controllers",
            "RolloutState", "PubAck"),
    Subject("$KV.mlx_rollout.version.<number>", "the leader", "JetStream",
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
PREFIX_EVENT_ALL = "mlx.event.kept.*"
CONTROLLER_EVENT_ALL = "mlx.event.controller.*"
HEALTH_CONTROLLERS = "mlx.health.controller"
HEALTH_CLUSTER = "mlx.health.cluster"
LIST_REQUESTS = "mlx.requests.list"
LOG_ALL = "mlx.log.*.*"
RECENT_LOGS = "mlx.logs.recent"
FIND_FILES = "mlx.files.find"
LEADER_BUCKET = "mlx_leader"
LEADER_KEY = "controller"
"""The leader's lease: in a bucket of its own, because the lease uses the bucket's sequence."""

ROLLOUT_BUCKET = "mlx_rollout"
ROLLOUT_KEY = "state"
"""The state of roll-outs; the bucket also has the versions of cluster.yaml."""


RESPONSES_BUCKET = "mlx_responses"
"""The object store of the responses that gateways store for their clients."""


def rollout_version(number: int) -> str:
    """Return the key of a version in the bucket of roll-outs."""
    return f"version.{number}"


def key_value(bucket: str, key: str) -> str:
    """Return the subject of a key in a JetStream bucket."""
    return f"$KV.{bucket}.{key}"


def jetstream(verb: str, bucket: str) -> str:
    """Return the subject of JetStream's API for a verb on the stream of a KV bucket."""
    return f"$JS.API.STREAM.{verb}.KV_{bucket}"


def stored_objects(bucket: str) -> str:
    """Return the subjects of the chunks and metadata in an object store."""
    return f"$O.{bucket}.>"


def object_stream(verb: str, bucket: str) -> str:
    """As `jetstream`, for an object store."""
    return f"$JS.API.STREAM.{verb}.OBJ_{bucket}"


def infer(client: ClientName, skill: SkillName) -> str:
    return f"mlx.infer.{client}.{skill}"


def route(client: ClientName, skill: SkillName) -> str:
    return f"mlx.route.{client}.{skill}"


def parse_infer(subject: str) -> tuple[ClientName, SkillName]:
    """Return client and skill of `mlx.infer.<client>.<skill>` or `mlx.route.<client>.<skill>`. They
    may be no valid names: then the request gets an error."""
    _, _, client, skill = subject.split(".")
    return ClientName(client), SkillName(skill)


def request(client: ClientName, verb: str) -> str:
    return f"mlx.request.{client}.{verb}"


def parse_request(subject: str) -> tuple[ClientName, str]:
    """Return client and verb of `mlx.request.<client>.<verb>`. They may be no valid names: then the
    query gets an error."""
    _, _, client, verb = subject.split(".")
    return ClientName(client), verb


def client_of(subject: str) -> str:
    """Return the client's token in a subject on which a client publishes; empty without one."""
    match = _OF_A_CLIENT.match(subject)
    return match[1] if match is not None else ""


def resend_all(worker: WorkerId) -> str:
    """Return the subject of the resend queries of all clients to a worker."""
    return f"mlx.stream.{worker}.*.resend"


def parse_resend(subject: str) -> ClientName:
    """Return the client of `mlx.stream.<worker>.<client>.resend`.

    Raises:
        InvalidSubject: it is no valid name.
    """
    (client,) = _names(subject, 3)
    return ClientName(client)


def resend(worker: WorkerId, client: ClientName) -> str:
    return f"mlx.stream.{worker}.{client}.resend"


def controller_transfer(controller: ControllerId) -> str:
    return f"mlx.controller.{controller}.transfer"


def worker_infer(worker: WorkerId) -> str:
    return f"mlx.worker.{worker}.infer"


def worker_control(worker: WorkerId, verb: str) -> str:
    return f"mlx.worker.{worker}.control.{verb}"


def parse_worker_control(subject: str) -> str:
    """Return the verb of `mlx.worker.<worker>.control.<verb>`.

    Raises:
        InvalidSubject: it is no valid name.
    """
    (verb,) = _names(subject, 4)
    return verb


def worker_alive(worker: WorkerId, boot: BootId) -> str:
    return f"mlx.worker.{worker}.{boot}.alive"


def worker_event(worker: WorkerId) -> str:
    return f"mlx.event.worker.{worker}"


def prefix_event(worker: WorkerId) -> str:
    return f"mlx.event.kept.{worker}"


def controller_event(controller: ControllerId) -> str:
    return f"mlx.event.controller.{controller}"


def request_event(controller: ControllerId, worker: WorkerId) -> str:
    return f"mlx.event.request.{controller}.{worker}"


def request_event_all(controller: ControllerId) -> str:
    """Return the subject of the request events of all workers for a controller."""
    return f"mlx.event.request.{controller}.*"


def event_sender(subject: str) -> str:
    """Return who sent an event: the last token of its subject. Nobody else may publish there.

    Raises:
        InvalidSubject: it is no valid name.
    """
    _, _, sender = subject.rpartition(".")
    if not is_name(sender):
        raise _invalid(subject)
    return sender


def process_of(subject: str) -> Process | None:
    """Return the worker or controller that sends events on a subject, or answers there; None if the
    subject is not that of a process with a valid name."""
    match subject.split("."):
        case ["mlx", "event", "worker" | "kept", name] if is_name(name):
            return "worker", name
        case ["mlx", "event", "request", _, name] if is_name(name):
            return "worker", name
        case ["mlx", "worker", name, *_] if is_name(name):
            return "worker", name
        case ["mlx", "event" | "health", "controller", name] if is_name(name):
            return "controller", name
    return None


def controller_health(controller: ControllerId) -> str:
    return f"mlx.health.controller.{controller}"


def rollout(verb: str) -> str:
    return f"mlx.rollout.{verb}"


def worker_health(worker: WorkerId) -> str:
    return f"mlx.health.worker.{worker}"


def log(kind: str, identity: str) -> str:
    return f"mlx.log.{kind}.{identity}"


def reply_number(subject: str) -> int:
    """Return the number that an inbox ends with; -1 without one."""
    _, _, number = subject.rpartition(".")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 19 else -1


def parse_log(subject: str) -> tuple[str, str]:
    """Return kind and id of `mlx.log.<kind>.<id>`.

    Raises:
        InvalidSubject: one of them is no valid name.
    """
    kind, identity = _names(subject, 2, 3)
    return kind, identity


def inbox_prefix(role: str, name: str) -> str:
    """Return the prefix of the inboxes of a user."""
    if role == "client":
        return f"{INBOX_PREFIX}.{name}"
    return f"{INTERNAL_INBOX_PREFIX}.{role}.{name}"


def is_any_inbox(subject: str) -> bool:
    """Whether `subject` is an inbox. Replies go to inboxes only: on a subject of the cluster a
    reply would be an order, with the permissions of the process that replies."""
    inboxes = subject.startswith((f"{INBOX_PREFIX}.", f"{INTERNAL_INBOX_PREFIX}."))
    return inboxes and _is_bounded(subject)


def may_receive(subject: str, client: ClientName, *, strict: bool) -> bool:
    """Whether the reply to a client's query may be sent to `subject`: an inbox of the client, or
    of a process of the cluster, which sends queries for many clients."""
    if subject.startswith(f"{INTERNAL_INBOX_PREFIX}."):
        return is_any_inbox(subject)
    return is_inbox(subject, client, strict=strict)


def is_inbox(subject: str, client: ClientName, *, strict: bool) -> bool:
    """Whether a stream may be sent to `subject` (the inbox rule).

    Args:
        strict: where the server authenticates, the inbox must be the client's own.
    """
    prefix = f"{INBOX_PREFIX}.{client}." if strict else f"{INBOX_PREFIX}."
    return subject.startswith(prefix) and _is_bounded(subject)


def _names(subject: str, *positions: int) -> list[str]:
    """Return the tokens of a subject at these positions.

    Raises:
        InvalidSubject: one of them is no valid name.
    """
    tokens = subject.split(".")
    if len(tokens) <= max(positions) or not all(is_name(tokens[at]) for at in positions):
        raise _invalid(subject)
    return [tokens[at] for at in positions]


def _invalid(subject: str) -> InvalidSubject:
    return InvalidSubject(
        "a token of the subject is no valid name", subject.encode(errors="replace")
    )


def _is_bounded(subject: str) -> bool:
    return len(subject) <= MAX_INBOX_CHARACTERS and _INBOX.fullmatch(subject) is not None
