"""Orders and questions about single requests, and orders to a worker."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.codec import InternalMessage, InternalPart
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
from shared.messages.dispatch import Dispatch
from shared.messages.events import Count, KeptPrefixes, ModelStatus, RequestFailed
from shared.messages.request import Turn

_LONGEST_DRAIN_MS = 86_400_000

RequestStateName = Literal["accepted", "dispatching", "running", "finished", "failed", "unknown"]
ResendStateName = Literal["running", "finished", "unknown"]


class RequestQuery(BaseModel):
    """A client's `cancel` or `status`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    request_id: RequestId = Field(pattern=ID_PATTERN)


class RequestState(InternalMessage):
    """The leader's answer to a `RequestQuery`; `message` says what is wrong with a query."""

    request_id: RequestId
    state: RequestStateName
    controller: ControllerId
    worker: WorkerId | None = None
    attempt: int = 0
    tokens: int = 0
    message: str | None = None


class ResendQuery(BaseModel):
    """A client's question for the messages of a stream from a token index on: of one choice,
    or of all."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    request_id: RequestId = Field(pattern=ID_PATTERN)
    choice: int | None = Field(None, ge=0)
    from_index: int = Field(0, ge=0)


class ResendState(InternalMessage):
    """The answer to a `ResendQuery`; unless unknown, the chunks follow on the same inbox, and
    the end where it has come."""

    request_id: RequestId
    state: ResendStateName
    message: str | None = None


class LeaderOrder(InternalMessage):
    """What the leader orders with its `term`, which fences: a worker refuses a lower one than that
    of the leader that claimed it. Orders of operators carry none."""

    term: Count | None = None


class CancelRequest(LeaderOrder):
    """Stops one attempt of a request; -1 stops any.

    `silent`: the client is told nothing, because another attempt goes on.
    """

    verb: Literal["cancel"] = "cancel"
    request_id: RequestId
    client: ClientName
    attempt: int = -1
    silent: bool = False


class AttachStream(LeaderOrder):
    """Sends a stream, from index 0 on, to one more inbox; also one that has ended."""

    verb: Literal["attach"] = "attach"
    request_id: RequestId
    client: ClientName
    attempt: int
    inbox: str


class LoadModel(InternalMessage):
    """Begins to load a model; the reply comes at once, the worker's state tells how it goes."""

    verb: Literal["load"] = "load"
    model: ModelId


class UnloadModel(InternalMessage):
    """Refused while requests use the model."""

    verb: Literal["unload"] = "unload"
    model: ModelId


class ListModels(InternalMessage):
    """All models of the worker, or one."""

    verb: Literal["models"] = "models"
    model: ModelId | None = None


class DrainWorker(InternalMessage):
    """Takes nothing new and ends; streams in flight end by themselves until the deadline
    (`worker.drain_timeout_ms`, unless it is given here), then they go on at other workers.

    `restart`: the same command is started again in the same process.
    """

    verb: Literal["drain"] = "drain"
    deadline_ms: int | None = Field(None, ge=0, le=_LONGEST_DRAIN_MS)
    restart: bool = False


class ConfigureWorker(LeaderOrder):
    """Runs with a version of cluster.yaml: at once where that can be, else the worker drains as
    after `DrainWorker`, and starts again. The reply says which.

    Attributes:
        version: 0 for the machine's own file.
        text: of the file; None with version 0.
        deadline_ms: as of `DrainWorker`.
        dry_run: only tell what it would take.
    """

    verb: Literal["config"] = "config"
    version: Count
    text: str | None = None
    deadline_ms: int | None = Field(None, ge=0, le=_LONGEST_DRAIN_MS)
    dry_run: bool = False


class SettingChange(InternalPart):
    """One setting of a worker or controller, by its path with dots; None where it is not there."""

    key: str
    before: Any = None
    after: Any = None


class ClaimWorker(LeaderOrder):
    """From now on the worker takes work of this leader only, and tells it of all requests; the
    reply says which there are. Also for a leader that may have missed what it was told.

    Attributes:
        ended_within_ms: of those that ended, which ones it does not know of yet; None: all.
    """

    verb: Literal["claim"] = "claim"
    controller: ControllerId
    ended_within_ms: Count | None = None


class RequestRef(InternalPart):
    """One attempt of a request."""

    client: ClientName
    request_id: RequestId
    attempt: int


class TellContents(LeaderOrder):
    """Bodies and tokens of requests that a claim named: of the first ones, as many as go into a
    message."""

    verb: Literal["contents"] = "contents"
    requests: list[RequestRef]


class ListSessions(InternalMessage):
    """The sessions of the worker, or those of a client: the last used ones."""

    verb: Literal["sessions"] = "sessions"
    client: ClientName | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 1000


class TellKept(InternalMessage):
    """What of prompts the worker keeps, whole."""

    verb: Literal["kept"] = "kept"


class SessionOrder(LeaderOrder):
    """About one session of a client."""

    client: ClientName
    session_id: str


class TellSession(SessionOrder):
    """What was said in a session: asked for one that goes on with its new turn alone."""

    verb: Literal["session"] = "session"


class ForgetSession(SessionOrder):
    """Forgets what was said; with `drop` also what is kept of its text alone."""

    verb: Literal["forget"] = "forget"
    drop: bool = True


class PinSession(SessionOrder):
    """Keeps a session and its text when others go, or no longer."""

    verb: Literal["pin"] = "pin"
    pinned: bool = True


ControlOrder = (
    CancelRequest
    | AttachStream
    | LoadModel
    | UnloadModel
    | ListModels
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
    "attach": AttachStream,
    "load": LoadModel,
    "unload": UnloadModel,
    "models": ListModels,
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


class ClaimedRequest(InternalPart):
    """A request that a worker has, or had not long ago.

    Attributes:
        state: it is here, went back to the leader, or ended and its client was told.
        session_id: of which it is a turn.
        fingerprint: of its body.
        tokens: how many were emitted.
        failure: why it went back, or failed.
        retries, migrations, crashes: as its dispatch told.
    """

    client: ClientName
    request_id: RequestId
    attempt: int
    state: ClaimedState
    skill: SkillName
    model: ModelId
    session_id: str | None = None
    fingerprint: str
    tokens: Count = 0
    failure: RequestFailed | None = None
    retries: Count = 0
    migrations: Count = 0
    crashes: Count = 0


class Claimed(InternalPart):
    """What a worker tells the leader that claims it.

    Attributes:
        requests: all that are here, and those that left within half a minute.
        kept: what of prompts and sessions it keeps since it told that last.
    """

    term: Count
    requests: list[ClaimedRequest] = []
    kept: KeptPrefixes | None = None


class SessionStatus(InternalPart):
    """A session, and what is kept of its text.

    Attributes:
        turns: how many were answered.
        continuable: whether all that was said is known, so that a new turn alone is enough.
        active: a request of it runs.
        text_tokens: of its text after the last turn.
        tokens: how many first ones of those can be had, from memory or disk.
        memory_tokens: how many first ones are in memory.
        own_bytes: of `memory_bytes` and `disk_bytes`, what no other text shares.
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


class ControlReply(InternalMessage):
    """What became of an order, by this boot; `claimed` answers `ClaimWorker`, `contents`
    `TellContents`: each dispatch as it came, but `inboxes` are those that listen now, `elapsed_ms`
    counts until now, and `resume` is what was emitted; `models` answers orders about models: all,
    or the one concerned; `sessions` those about sessions, `said` `TellSession`: all messages, or
    None where they are not known; `kept` `TellKept`; `effect` and `changes`
    `ConfigureWorker`: None where nothing is to be done."""

    worker: WorkerId
    boot_id: BootId | None = None
    ok: bool
    code: str | None = None
    message: str | None = None
    claimed: Claimed | None = None
    contents: list[Dispatch] = []
    models: list[ModelStatus] = []
    sessions: list[SessionStatus] = []
    said: list[Turn] | None = None
    kept: KeptPrefixes | None = None
    effect: Literal["live", "models", "restart"] | None = None
    changes: list[SettingChange] = []
