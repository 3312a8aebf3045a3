"""How the leader hands requests to a worker, and, as it leaves, to the next leader."""

from collections.abc import Iterable, Mapping

import orjson

from shared.codec import InternalMessage, InternalPart
from shared.ids import BootId, ClientName, ControllerId, ModelId, RequestId, SkillName, WorkerId
from shared.messages.events import Count
from shared.messages.request import InferenceRequest
from shared.messages.routes import Route
from shared.messages.stream import FinishReason
from shared.version import PROTOCOL

MAX_INBOXES = 8
"""So many may listen to one stream; the oldest goes when one more comes."""

_SEED_STRIDE = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: choices get unrelated seeds


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one choice of a request whose first choice has `seed`. Of a list of prompts the
    first choice of prompt k is number k * n, so on its own it is given that one's seed."""
    return (seed + choice * _SEED_STRIDE) % 2**64


class Refusal(InternalPart):
    """Why a worker does not take a dispatch; `code` is a key of `errors.ERROR_CODES`."""

    code: str
    message: str
    param: str | None = None
    retry_after_ms: int | None = None


class Continuation(InternalPart):
    """Where another attempt takes over.

    Attributes:
        token_ids: what was emitted so far, by choice: with those of the client's own `resume`.
        text_sent: characters of their text, likewise: an attempt that makes another of the same
            tokens is not the same model.
        finish_reasons: of the choices that had ended.
        first_token_ms: from acceptance to the first token.
        cached_tokens: of the prompts, those that were kept where the request began.
    """

    token_ids: dict[int, list[int]]
    text_sent: dict[int, int] = {}
    finish_reasons: dict[int, FinishReason] = {}
    first_token_ms: float | None = None
    cached_tokens: int | None = None


class Dispatch(InternalPart):
    """One request for one worker.

    Attributes:
        attempt: counts dispatches of this request, in each term from 1000 x (term - 1) + 1;
            clients ignore lower ones.
        inboxes: who listens: one, or more where the request was published again.
        elapsed_ms: time since acceptance, so that no clocks are compared.
        seed: of the first choice, fixed at acceptance; an attempt on another worker draws the same
            tokens.
        route: how this worker was chosen, for who asked: it goes into the terminal message.
        retries, migrations: attempts that failed before this one; of those, the ones that had begun
            to answer.
        crashes: of those, the ones that an engine ended with, maybe because of this request.
        fingerprint: of the body as its client sent it, where `request` has earlier messages of its
            session, too.
    """

    request_id: RequestId
    client: ClientName
    skill: SkillName
    model: ModelId
    attempt: int
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

    @property
    def body_fingerprint(self) -> str:
        """Of the body as its client sent it."""
        return self.fingerprint or self.request.fingerprint()


class DispatchBatch(InternalMessage):
    """Leader to worker, on `mlx.worker.<worker>.infer`; `term` is the leader's."""

    owner: ControllerId
    term: Count | None = None
    dispatches: list[Dispatch]


def encode_batch(owner: ControllerId, term: int, dispatches: Iterable[bytes]) -> bytes:
    """A `DispatchBatch` of dispatches that are JSON already."""
    parts = [orjson.Fragment(each) for each in dispatches]
    head = {"protocol": PROTOCOL, "owner": owner, "term": term}
    return orjson.dumps({**head, "dispatches": parts})


def dispatch_json(fields: Mapping[str, object], request: bytes) -> bytes:
    """A `Dispatch` as JSON.

    Args:
        fields: those of it that are not None, but for its request.
        request: that as JSON.
    """
    return orjson.dumps({**fields, "request": orjson.Fragment(request)}, default=_part)


def _part(part: object) -> object:
    assert isinstance(part, InternalPart)
    return part.model_dump(mode="json", exclude_none=True)


class DispatchResult(InternalPart):
    """The ack or refusal of one dispatch; `attempt` is the one that runs."""

    request_id: RequestId
    client: ClientName
    attempt: int
    refusal: Refusal | None = None


class DispatchReply(InternalMessage):
    """Worker to controller: one result for each dispatch of the batch, in its order."""

    worker: WorkerId
    boot_id: BootId
    results: list[DispatchResult]


class Transfer(InternalMessage):
    """What a leader that left gives to the next one, in the order of their coming; several messages
    where they are many: each with the id under which it is known. `term` is that of who left."""

    controller: ControllerId
    term: Count
    requests: list[Dispatch]


class TransferReply(InternalMessage):
    """Whether they were taken."""

    taken: bool
