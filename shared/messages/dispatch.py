"""Dispatches of the leader to a worker, and transfers to the next leader."""

import hashlib
from collections.abc import Iterable, Mapping

import orjson

from shared.codec import WireMessage, WireMessagePart
from shared.ids import BootId, ClientName, ControllerId, ModelId, RequestId, SkillName, WorkerId
from shared.messages.base import Attempt, Count, Term
from shared.messages.request import MAX_SEED, InferenceRequest
from shared.messages.routes import Route
from shared.messages.sender import Sender, SentMessage
from shared.messages.stream import FinishReason
from shared.messages.trace import TraceContext
from shared.version import PROTOCOL

MAX_INBOXES = 8
"""Maximum number of inboxes per stream; above it the oldest is removed."""

_SEED_STRIDE = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: choices get unrelated seeds


def default_seed(client: ClientName, request_id: RequestId) -> int:
    """Return the seed of a request without one: the same id gets the same answer."""
    digest = hashlib.sha256(f"{client}/{request_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") & MAX_SEED


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of a choice of a request whose first choice has `seed`. In a list of prompts
    the first choice of prompt k has the number k * n, also if the prompt is served on its own."""
    return (seed + choice * _SEED_STRIDE) % 2**64


class DispatchRejection(WireMessagePart):
    """Why a worker rejects a dispatch; `code` is a key of `errors.ERROR_CODES`.

    `term`: with `stale_term`, that of the leader which claimed the worker.
    """

    code: str
    message: str
    param: str | None = None
    retry_after_ms: int | None = None
    term: Term | None = None


class Continuation(WireMessagePart):
    """The progress of a request, from which another attempt continues.

    Attributes:
        token_ids: the emitted tokens per choice, including those of the client's own `resume`.
        text_sent: the number of characters of their text, likewise: an attempt that decodes the
            same tokens to another number runs another model.
        finish_reasons: of the choices that have ended.
        first_token_ms: from acceptance to the first token.
        cached_tokens: the tokens of the prompts that were cached at the first attempt.
    """

    token_ids: dict[int, list[int]]
    text_sent: dict[int, int] = {}
    finish_reasons: dict[int, FinishReason] = {}
    first_token_ms: float | None = None
    cached_tokens: int | None = None


class Dispatch(WireMessagePart):
    """One request for one worker.

    Attributes:
        attempt: counts dispatches of this request, in each term from 1000 x (term - 1) + 1;
            clients ignore lower attempts.
        inboxes: of the stream: one, or more if the request was published again.
        elapsed_ms: time since acceptance, so that no clocks are compared.
        seed: of the first choice, fixed at acceptance; an attempt on another worker samples the
            same tokens.
        route: how this worker was selected, for requests with `debug`; part of the terminal
            message.
        retries, migrations: failed attempts before this one; those among them that had emitted
            tokens.
        crashes: those among them that ended with a crash of the engine, maybe caused by this
            request.
        fingerprint: of the body as the client sent it, if `request` also has earlier messages of
            the session.
        trace: if the request is traced.
    """

    request_id: RequestId
    client: ClientName
    skill: SkillName
    model: ModelId
    attempt: Attempt
    inboxes: list[str]
    seed: int
    elapsed_ms: float
    request: InferenceRequest
    resume: Continuation | None = None
    route: Route | None = None
    retries: Count = 0
    migrations: Count = 0
    crashes: Count = 0
    fingerprint: str | None = None
    trace: TraceContext | None = None

    @property
    def body_fingerprint(self) -> str:
        """The fingerprint of the body as the client sent it."""
        return self.fingerprint or self.request.fingerprint()


class DispatchBatch(WireMessage):
    """Leader to worker, on `mlx.worker.<worker>.infer`; `term` is that of the leader."""

    owner: ControllerId
    term: Term
    dispatches: list[Dispatch]


def encode_batch(owner: ControllerId, term: int, dispatches: Iterable[bytes]) -> bytes:
    """Return a `DispatchBatch` of encoded dispatches as JSON."""
    parts = [orjson.Fragment(each) for each in dispatches]
    head = {"protocol": PROTOCOL, "owner": owner, "term": term}
    return orjson.dumps({**head, "dispatches": parts})


def dispatch_json(fields: Mapping[str, object], request: bytes) -> bytes:
    """Return a `Dispatch` as JSON.

    Args:
        fields: its fields that are not None, without `request`.
        request: its request, as JSON.
    """
    return orjson.dumps({**fields, "request": orjson.Fragment(request)}, default=_part)


def _part(part: object) -> object:
    assert isinstance(part, WireMessagePart)
    return part.model_dump(mode="json", exclude_none=True)


class DispatchResult(WireMessagePart):
    """The acceptance or rejection of one dispatch; `attempt` is the one that runs."""

    request_id: RequestId
    client: ClientName
    attempt: Attempt
    refusal: DispatchRejection | None = None


class DispatchReply(SentMessage):
    """Worker to controller: one result per dispatch of the batch, in the order of the batch; none,
    and a `refusal`, if the worker cannot read the batch."""

    worker: WorkerId
    boot_id: BootId
    results: list[DispatchResult]
    refusal: DispatchRejection | None = None

    @property
    def senders(self) -> tuple[Sender]:
        return (Sender(self.worker, self.boot_id),)


class Transfer(SentMessage):
    """Requests that a leader which shuts down transfers to the next one, in the order of their
    arrival, in several messages if there are many. Each request keeps its id. `term` is that of the
    old leader."""

    controller: ControllerId
    term: Term
    requests: list[Dispatch]

    @property
    def senders(self) -> tuple[Sender]:
        return (Sender(self.controller, None),)


class TransferReply(WireMessage):
    """Whether the requests were accepted."""

    taken: bool
