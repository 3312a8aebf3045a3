"""How two answers to the same request differ: where, in which tokens, by how much the model
preferred one to the other there, and whether rounding chose between them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.client import Cluster
from shared.messages.dispatch import choice_seed
from tests.faults.asks import Ask
from tests.faults.records import Answer, first_difference
from tests.ties import TIE_GAP
from tests.worker.engine.reference_sampler import gumbel_noise
from tests.worker.engine.samplings import sampling
from worker.link.orders import Sampling

_SHOWN_TOKENS = 12
_TOP = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """One choice of an answer.

    Attributes:
        is_tie: whether rounding chose between two tokens; else something is wrong.
    """

    what: str
    is_tie: bool = False


async def differences(
    cluster: Cluster, ask: Ask, alone: Answer, loaded: Answer, vocabulary: int
) -> list[Difference]:
    """Return how two answers differ; nothing where they are equal.

    Args:
        cluster: an idle one; it is asked for the log-probabilities.
        vocabulary: how many tokens the model has.
    """
    found = []
    for choice in sorted({*alone.token_ids, *loaded.token_ids}):
        solo, busy = alone.token_ids.get(choice, []), loaded.token_ids.get(choice, [])
        place = first_difference(solo, busy)
        if place is None:
            continue
        until = place + _SHOWN_TOKENS
        said = (
            f"{ask.name}, choice {choice}, token {place}: alone {solo[place:until]}, "
            f"with others {busy[place:until]}; "
        )
        if place >= min(len(solo), len(busy)):
            found.append(Difference(f"{said}one of them ended there; asked {_sampling(ask)}"))
            continue
        known = await _logprobs(cluster, ask, solo[:place])
        how = _how(ask, choice)
        tie = is_tie(how, place, known, solo[place], busy[place], vocabulary)
        said += _gap(known, solo[place], busy[place])
        found.append(Difference(f"{said}; asked {_sampling(ask)}", tie))
    if not found and alone != loaded:
        what = f"{ask.name}: the same tokens, but alone {alone}, with others {loaded}"
        found.append(Difference(what))
    return found


def is_tie(
    how: Sampling, place: int, known: Mapping[int, float], one: int, other: int, vocabulary: int
) -> bool:
    """Return whether rounding may choose between two tokens at a place of an answer.

    Args:
        known: log-probabilities of the likeliest tokens, at temperature 1, after penalties.
    """
    if one not in known or other not in known:
        return False
    lead = known[one] - known[other]
    if how.temperature > 0:
        noise = gumbel_noise(how, place, vocabulary)
        lead += how.temperature * float(noise[one] - noise[other])
    return abs(lead) < TIE_GAP


async def _logprobs(cluster: Cluster, ask: Ask, before: list[int]) -> dict[int, float]:
    """The log-probabilities of the likeliest tokens after so much of an answer."""
    fields = {**ask.fields, "n": 1, "temperature": 0.0, "logprobs": _TOP}
    fields["max_tokens"] = len(before) + 1
    fields.pop("stop", None)
    completion = await cluster.generate(**fields, resume={"token_ids": before, "text_sent": 0})
    (entry,) = completion.choices[0].logprobs or [{}]
    return {top["token_id"]: float(top["logprob"]) for top in entry.get("top", [])}


def _gap(known: Mapping[int, float], one: int, other: int) -> str:
    if one in known and other in known:
        return f"log-probability gap {abs(known[one] - known[other]):.6f}"
    return f"not both among the {_TOP} likeliest: {sorted(known.values(), reverse=True)[:3]} ..."


def _how(ask: Ask, choice: int) -> Sampling:
    fields = {
        name: ask.fields[name]
        for name in ("temperature", "top_p", "top_k", "min_p")
        if name in ask.fields
    }
    return sampling(seed=choice_seed(ask.fields["seed"], choice), **fields)


def _sampling(ask: Ask) -> dict[str, Any]:
    return {name: value for name, value in ask.fields.items() if name != "content"}
