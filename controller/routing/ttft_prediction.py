"""Predicts the time to the first token (TTFT) of a request on a worker, from the worker's own
measurements."""

from collections.abc import Mapping
from typing import NamedTuple

from controller.fleet.worker_view import WorkerView
from controller.routing.route_query import Links, RouteQuery
from shared.messages.events import Tier
from shared.messages.model_status import (
    TYPICAL_ANSWER_TOKENS,
    TYPICAL_BYTES_PER_TOKEN,
    ModelPerformance,
    ModelStatus,
)

_DEFAULT = ModelPerformance(
    prefill_tokens_per_s=500,
    step_ms=30,
    bytes_per_token=TYPICAL_BYTES_PER_TOKEN,
    answer_tokens=TYPICAL_ANSWER_TOKENS,
    load_ms=10_000,
)
"""Medium values for a worker without measurements: it must get neither all requests nor none."""

_RESTORE_MS_PER_TOKEN: dict[Tier, float] = {"memory": 0.002, "disk": 0.03}
"""Measured: 3,328 tokens of 30 layers from files in 0.1 s (docs/benchmarks.md)."""


class CachedShare(NamedTuple):
    """How much of a prompt a worker has cached: a share from 0 to 1, and in which tier."""

    share: float = 0.0
    tier: Tier = "memory"


NOT_CACHED = CachedShare()


class TTFTPrediction(NamedTuple):
    """The parts of a TTFT in milliseconds, in their order in time.

    Attributes:
        load_ms: loading the model.
        wait_ms: waiting for a batch slot, or for the prefill of earlier prompts.
        restore_ms: restoring the cached prefix.
        prefill_ms: prefill of the rest of the prompt.
        step_ms: the first decode step, together with the other rows.
        total_ms: the sum.
    """

    load_ms: float
    wait_ms: float
    restore_ms: float
    prefill_ms: float
    step_ms: float
    total_ms: float


def predict_ttft(
    view: WorkerView, status: ModelStatus, query: RouteQuery, cached: CachedShare
) -> TTFTPrediction:
    """Predict the TTFT of `query` on a worker, with a model that the worker has."""
    speed = status.speed
    bytes_per_token = speed.bytes_per_token or _DEFAULT.bytes_per_token
    tokens = query.token_ids + query.text_bytes / bytes_per_token
    rate = speed.prefill_tokens_per_s or _DEFAULT.prefill_tokens_per_s
    step_ms = speed.step_ms or _DEFAULT.step_ms
    cached_tokens = cached.share * tokens
    restore_ms = cached_tokens * _RESTORE_MS_PER_TOKEN[cached.tier]
    prefill_ms = 1000 * (tokens - cached_tokens) / rate
    load_ms = 0.0
    if status.state != "warm":
        load_ms = speed.load_ms or _DEFAULT.load_ms
        if status.state == "loading" and status.progress is not None:
            load_ms *= 1 - status.progress
    wait_ms = max(
        view.report.prefill_ms + view.unreported_ms,
        _slot_wait_ms(view, speed, step_ms),
    )
    total_ms = load_ms + wait_ms + restore_ms + prefill_ms + step_ms
    return TTFTPrediction(load_ms, wait_ms, restore_ms, prefill_ms, step_ms, total_ms)


def find_cached_share(links: Links, cached: Mapping[str, Tier]) -> CachedShare:
    """Return how much of a prompt is cached. A worker that has a prefix has all shorter ones, so
    that a binary search finds the longest one."""
    if not cached or not links or links[0][0] not in cached:
        return NOT_CACHED
    known, beyond = 1, len(links)
    while known < beyond:
        middle = (known + beyond) // 2
        if links[middle][0] in cached:
            known = middle + 1
        else:
            beyond = middle
    link, share = links[known - 1]
    return CachedShare(share, cached[link])


def _slot_wait_ms(view: WorkerView, speed: ModelPerformance, step_ms: float) -> float:
    """Predict the wait for a batch slot: each answer that ends frees one for the queue."""
    rows = speed.rows or view.report.max_batch_size
    over = view.choices + 1 - rows
    if not rows or over <= 0:
        return 0.0
    answer_ms = (speed.answer_tokens or _DEFAULT.answer_tokens) * step_ms
    return over * answer_ms / rows
