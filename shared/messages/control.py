"""Queries and orders about single requests, and orders to a worker."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.codec import WireMessage, WireMessagePart
from shared.ids import (
    ID_PATTERN,
    BootId,
    ClientName,
    ControllerId,
    ModelId,
    RequestId,
    SkillName,
    WorkerId,
)
from shared.messages.base import Attempt, Count, Term
from shared.messages.conversation import Turn
from shared.messages.dispatch import Dispatch
from shared.messages.events import KeptPrefixes
from shared.messages.model_status import ModelStatus
from shared.messages.request_events import AttemptFailed
from shared.messages.request_list import Limit, RequestActivity
from shared.messages.sender import Sender, SentMessage

_LONGEST_DRAIN_MS = 86_400_000

RequestStateName = Literal["accepted", "dispatching", "running", "finished", "failed", "unknown"]
ResendStateName = Literal["running", "finished", "unknown"]


class RequestQuery(BaseModel):
    """A client's `cancel` or `status`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    request_id: RequestId = Field(pattern=ID_PATTERN)


class RequestState(WireMessage):
    """The leader's reply to a `RequestQuery`; `message` says why a query is invalid."""

    request_id: RequestId
    state: RequestStateName
    controller: ControllerId
    worker: WorkerId | None = None
    attempt: Attempt = 0
    tokens: int = 0
    message: str | None = None


class ResendQuery(BaseModel):
    """A client's query for the messages of a stream from a token index on, of one choice or all."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    request_id: RequestId = Field(pattern=ID_PATTERN)
    choice: int | None = Field(None, ge=0, lt=2**31)
    from_index: int = Field(0, ge=0, lt=2**63)


class ResendState(WireMessage):
    """The reply to a `ResendQuery`. Unless the state is unknown, the chunks follow on the same
    inbox, and the terminal message if the request has ended."""

    request_id: RequestId
    state: ResendStateName
    message: str | None = None


class FencedOrder(WireMessage):
    """An order of the leader. A worker rejects terms below that of the leader that claimed it.
    Orders of operators have no term."""

    term: Term | None = None


class CancelRequest(FencedOrder):
    """Cancels one attempt of a request; -1 cancels any. `silent`: the client gets no message,
    because another attempt continues."""

    verb: Literal["cancel"] = "cancel"
    request_id: RequestId
    client: ClientName
    attempt: Attempt = -1
    silent: bool = False


class AttachInbox(FencedOrder):
    """Sends a stream, also an ended one, to one more inbox, from index 0 on."""

    verb: Literal["attach"] = "attach"
    request_id: RequestId
    client: ClientName
    attempt: Attempt
    inbox: str


class LoadModel(WireMessage):
    """Starts to load a model. The reply is immediate; the worker's state reports the progress."""

    verb: Literal["load"] = "load"
    model: ModelId


class UnloadModel(WireMessage):
    """Refused while requests use the model."""

    verb: Literal["unload"] = "unload"
    model: ModelId


class ListModels(WireMessage):
    """Lists all models of the worker, or one."""

    verb: Literal["models"] = "models"
    model: ModelId | None = None


class PinModel(WireMessage):
    """Protects a model from eviction, or ends the protection, until the worker restarts."""

    verb: Literal["pin_model"] = "pin_model"
    model: ModelId
    pinned: bool = True


class ListRequests(WireMessage):
    """Lists the requests of the worker, or of a client."""

    verb: Literal["requests"] = "requests"
    client: ClientName | None = None
    limit: Limit = 1000


class DrainWorker(WireMessage):
    """Accepts no more requests, and exits. Running streams may finish until the deadline (by
    default `worker.drain_timeout_ms`), and then migrate to other workers.

    `restart`: the same command is started again in the same process.
    """

    verb: Literal["drain"] = "drain"
    deadline_ms: int | None = Field(None, ge=0, le=_LONGEST_DRAIN_MS)
    restart: bool = False


class ConfigureWorker(FencedOrder):
    """Applies a version of cluster.yaml: at once if possible; otherwise the worker drains as after
    `DrainWorker`, and restarts. The reply says which.

    Attributes:
        version: 0 for the machine's own file.
        text: of the file; None with version 0.
        deadline_ms: as of `DrainWorker`.
        dry_run: only report the effect.
    """

    verb: Literal["config"] = "config"
    version: Count
    text: str | None = None
    deadline_ms: int | None = Field(None, ge=0, le=_LONGEST_DRAIN_MS)
    dry_run: bool = False


class SettingChange(WireMessagePart):
    """A setting of a worker or controller, by its dotted path; None where it does not exist."""

    key: str
    before: Any = None
    after: Any = None


class ClaimWorker(FencedOrder):
    """From now on the worker accepts work from this leader only, and reports all requests to it;
    the reply lists the requests. A leader that may have missed reports claims again.

    Attributes:
        boot_id: of the controller: another boot leads in another term.
        ended_within_ms: also list requests that ended within this time; None: all that are known.
    """

    verb: Literal["claim"] = "claim"
    term: Term
    controller: ControllerId
    boot_id: BootId
    ended_within_ms: Count | None = None


class AttemptRef(WireMessagePart):
    """One attempt of a request."""

    client: ClientName
    request_id: RequestId
    attempt: Attempt


class TellContents(FencedOrder):
    """Queries bodies and tokens of requests that a claim listed. The reply has as many of the first
    ones as fit into a message."""

    verb: Literal["contents"] = "contents"
    requests: list[AttemptRef]


class ListSessions(WireMessage):
    """Lists the sessions of the worker, or of a client: the most recently used ones."""

    verb: Literal["sessions"] = "sessions"
    client: ClientName | None = None
    limit: Limit = 1000


class TellKept(WireMessage):
    """Queries all cached prefixes and sessions of the worker."""

    verb: Literal["kept"] = "kept"


class SessionControlOrder(FencedOrder):
    """An order about one session of a client."""

    client: ClientName
    session_id: str


class TellSession(SessionControlOrder):
    """Queries the messages of a session, for a turn that was sent without them."""

    verb: Literal["session"] = "session"


class ForgetSession(SessionControlOrder):
    """Deletes the messages of a session; with `drop` also the cached blocks that only it uses."""

    verb: Literal["forget"] = "forget"
    drop: bool = True


class PinSession(SessionControlOrder):
    """Protects a session and its cached blocks from eviction, or ends the protection."""

    verb: Literal["pin"] = "pin"
    pinned: bool = True


ControlOrder = (
    CancelRequest
    | AttachInbox
    | LoadModel
    | UnloadModel
    | PinModel
    | ListModels
    | ListRequests
    | DrainWorker
    | ConfigureWorker
    | ClaimWorker
    | TellContents
    | ListSessions
    | TellSession
    | ForgetSession
    | PinSession
    | TellKept
)

CONTROL_ORDERS: dict[str, type[ControlOrder]] = {
    "cancel": CancelRequest,
    "attach": AttachInbox,
    "load": LoadModel,
    "unload": UnloadModel,
    "pin_model": PinModel,
    "models": ListModels,
    "requests": ListRequests,
    "drain": DrainWorker,
    "config": ConfigureWorker,
    "claim": ClaimWorker,
    "contents": TellContents,
    "sessions": ListSessions,
    "session": TellSession,
    "forget": ForgetSession,
    "pin": PinSession,
    "kept": TellKept,
}
"""The order that each verb of `mlx.worker.<worker>.control.<verb>` carries."""


ClaimedState = Literal["running", "returned", "finished", "failed"]


class ClaimedRequest(WireMessagePart):
    """A request that a worker has, or had recently.

    Attributes:
        state: it is running here, was requeued, or ended and its client has the terminal message.
        session_id: the session of which it is a turn.
        fingerprint: of its body.
        tokens: number of emitted tokens.
        resumed_tokens: number of those that its client had received before (`resume`).
        failure: why it was requeued, or failed.
        retries, migrations, crashes: as in its dispatch.
    """

    client: ClientName
    request_id: RequestId
    attempt: Attempt
    state: ClaimedState
    skill: SkillName
    model: ModelId
    session_id: str | None = None
    fingerprint: str
    tokens: Count = 0
    resumed_tokens: Count = 0
    failure: AttemptFailed | None = None
    retries: Count = 0
    migrations: Count = 0
    crashes: Count = 0


class ClaimReport(WireMessagePart):
    """The report of a worker to the leader that claims it.

    Attributes:
        requests: all requests of the worker, and those that ended or were requeued within the last
            half a minute.
        kept: changes of cached prefixes and sessions since the last report of them.
    """

    term: Term
    requests: list[ClaimedRequest] = []
    kept: KeptPrefixes | None = None


class SessionStatus(WireMessagePart):
    """A session, and its cached blocks.

    Attributes:
        turns: number of answered turns.
        continuable: whether all messages are stored, so that a new turn can be sent alone.
        active: a request of the session is running.
        text_tokens: length of the sequence after the last turn.
        tokens: length of its prefix that is cached, in memory or on disk.
        memory_tokens: length of its prefix that is cached in memory.
        own_bytes: the part of `memory_bytes` and `disk_bytes` that no other sequence shares.
    """

    client: ClientName
    id: str
    model: ModelId
    turns: Count = 0
    continuable: bool = False
    pinned: bool = False
    active: bool = False
    age_s: float = 0.0
    idle_s: float = 0.0
    text_tokens: Count = 0
    tokens: Count = 0
    memory_tokens: Count = 0
    memory_bytes: Count = 0
    disk_bytes: Count = 0
    own_bytes: Count = 0


class ControlReply(SentMessage):
    """The result of an order, from this boot.

    Attributes:
        term: with `stale_term`, that of the leader which claimed the worker.
        claimed: for `ClaimWorker`.
        contents: for `TellContents`: each dispatch as it was received, but with the current
            `inboxes`, `elapsed_ms` until now, and the emitted tokens as `resume`.
        models: for orders about models: all, or the one of the order.
        requests: for `ListRequests`.
        sessions: for orders about sessions.
        said: for `TellSession`: all messages, or None if they are not known.
        kept: for `TellKept`.
        effect, changes: for `ConfigureWorker`; None if there is nothing to apply.
    """

    worker: WorkerId
    boot_id: BootId | None = None
    ok: bool
    code: str | None = None
    message: str | None = None
    term: Term | None = None
    claimed: ClaimReport | None = None
    contents: list[Dispatch] = []
    models: list[ModelStatus] = []
    requests: list[RequestActivity] = []
    sessions: list[SessionStatus] = []
    said: list[Turn] | None = None
    kept: KeptPrefixes | None = None
    effect: Literal["live", "models", "restart"] | None = None
    changes: list[SettingChange] = []

    @property
    def senders(self) -> list[Sender]:
        kept = (self.kept, self.claimed.kept if self.claimed is not None else None)
        inner = [each for report in kept if report for each in report.senders]
        return [Sender(self.worker, self.boot_id), *inner]
