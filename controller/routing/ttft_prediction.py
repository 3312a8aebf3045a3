"""How long a worker would take to the first token of a request, from what it measured itself."""

from collections.abc import Mapping
from typing import NamedTuple

from controller.fleet.worker_view import WorkerView
from controller.routing.route_query import Links, RouteQuery
from shared.messages.events import Tier
from shared.messages.model_status import (
    TYPICAL_ANSWER_TOKENS,
    TYPICAL_BYTES_PER_TOKEN,
    ModelSpeed,
    ModelStatus,
)

_UNKNOWN = ModelSpeed(
    prefill_tokens_per_s=500,
    step_ms=30,
    bytes_per_token=TYPICAL_BYTES_PER_TOKEN,
    answer_tokens=TYPICAL_ANSWER_TOKENS,
    load_ms=10_000,
)
"""Of a worker that has not measured: middling, so that it is neither flooded nor left out."""

_RESTORE_MS_PER_TOKEN: dict[Tier, float] = {"memory": 0.002, "disk": 0.03}
"""Measured: 3,328 tokens of 30 layers from files in 0.1 s (docs/benchmarks.md)."""


class CachedShare(NamedTuple):
    """How much of a prompt a worker keeps: a share from 0 to 1, and where."""

    share: float = 0.0
    tier: Tier = "memory"


NOTHING = CachedShare()


class TTFTPrediction(NamedTuple):
    """Milliseconds, in the order in which they pass.

    Attributes:
        load_ms: until the model is there.
        wait_ms: for a place in a batch, or for the prompts that were there before.
        restore_ms: what is kept is put into the cache.
        prefill_ms: the rest of the prompt is computed.
        step_ms: the first token is decoded with the others.
        total_ms: all of it.
    """

    load_ms: float
    wait_ms: float
    restore_ms: float
    prefill_ms: float
    step_ms: float
    total_ms: float


def predict_ttft(
    view: WorkerView, status: ModelStatus, query: RouteQuery, kept: CachedShare
) -> TTFTPrediction:
    """The time to the first token of `query` on a worker for a model that it has."""
    speed = status.speed
    bytes_per_token = speed.bytes_per_token or _UNKNOWN.bytes_per_token
    tokens = query.token_ids + query.text_bytes / bytes_per_token
    rate = speed.prefill_tokens_per_s or _UNKNOWN.prefill_tokens_per_s
    step_ms = speed.step_ms or _UNKNOWN.step_ms
    kept_tokens = kept.share * tokens
    restore_ms = kept_tokens * _RESTORE_MS_PER_TOKEN[kept.tier]
    prefill_ms = 1000 * (tokens - kept_tokens) / rate
    load_ms = 0.0
    if status.state != "warm":
        load_ms = speed.load_ms or _UNKNOWN.load_ms
        if status.state == "loading" and status.progress is not None:
            load_ms *= 1 - status.progress
    wait_ms = max(
        view.report.prefill_ms + view.unreported_ms,
        _place_ms(view, speed, step_ms),
    )
    total_ms = load_ms + wait_ms + restore_ms + prefill_ms + step_ms
    return TTFTPrediction(load_ms, wait_ms, restore_ms, prefill_ms, step_ms, total_ms)


def find_cached_share(links: Links, held: Mapping[str, Tier]) -> CachedShare:
    """How much of a prompt is held. A worker that holds a link holds those before it, so the
    last one is found by halving."""
    if not held or not links or links[0][0] not in held:
        return NOTHING
    known, beyond = 1, len(links)
    while known < beyond:
        middle = (known + beyond) // 2
        if links[middle][0] in held:
            known = middle + 1
        else:
            beyond = middle
    link, share = links[known - 1]
    return CachedShare(share, held[link])


def _place_ms(view: WorkerView, speed: ModelSpeed, step_ms: float) -> float:
    """Until a place in a batch is free: those who wait get one each time an answer ends."""
    rows = speed.rows or view.report.max_batch_size
    over = view.choices + 1 - rows
    if not rows or over <= 0:
        return 0.0
    answer_ms = (speed.answer_tokens or _UNKNOWN.answer_tokens) * step_ms
    return over * answer_ms / rows
