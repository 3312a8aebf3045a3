"""How tokens are drawn in tests: greedy unless a field says otherwise."""

from dataclasses import replace
from typing import Any

from worker.link.orders import Sampling

GREEDY = Sampling(
    temperature=0.0,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    logit_bias={},
    seed=0,
    logprobs=None,
)


def sampling(**fields: Any) -> Sampling:
    return replace(GREEDY, **fields)
