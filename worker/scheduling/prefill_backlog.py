"""The prefill backlog: how long the prompts on this worker delay a new one."""

from collections.abc import Collection, Iterable, Mapping

from shared.ids import ModelId
from shared.messages.model_status import ModelPerformance
from worker.requests.active_request import ActiveRequest


def prefill_ms(
    engines: Collection[int],
    requests: Iterable[ActiveRequest],
    speeds: Mapping[ModelId, ModelPerformance],
) -> float:
    """Return the milliseconds until the first engine has prefilled its prompts and its share of the
    queued ones. Models whose speed is unknown count 0.

    Args:
        engines: indices of the running engines.
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
