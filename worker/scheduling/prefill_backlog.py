"""How long the prompts that are on this worker keep its engines from new ones."""

from collections.abc import Collection, Iterable, Mapping

from shared.ids import ModelId
from shared.messages.model_status import ModelSpeed
from worker.requests.active_request import ActiveRequest


def prefill_ms(
    engines: Collection[int],
    requests: Iterable[ActiveRequest],
    speeds: Mapping[ModelId, ModelSpeed],
) -> float:
    """Until the first engine has computed its prompts, and its share of those that wait for a
    place. A model whose speed nobody knows counts for nothing.

    Args:
        engines: indices of those that run.
    """
    own_ms = dict.fromkeys(engines, 0.0)
    waiting_ms = 0.0
    for request in requests:
        speed = speeds[request.model]
        if request.started or request.counts_only or not speed.prefill_tokens_per_s:
            continue
        left_ms = 1000 * request.expected_left_tokens(speed) / speed.prefill_tokens_per_s
        if request.engine is None:
            waiting_ms += left_ms
        elif request.engine in own_ms:
            own_ms[request.engine] += left_ms
    return min(own_ms.values()) + waiting_ms / len(own_ms) if own_ms else 0.0
