"""How two answers to the same request differ: where, in which tokens, and by how much the
model preferred one to the other there."""

from typing import Any

from shared.client import Cluster
from tests.faults.asks import Ask
from tests.faults.records import Answer, first_difference

_SHOWN_TOKENS = 12
_TOP = 20


async def explain(cluster: Cluster, ask: Ask, alone: Answer, loaded: Answer) -> list[str]:
    """One line for each difference; empty when the answers are equal.

    Args:
        cluster: an idle one; it is asked for the log-probabilities.
    """
    said = []
    for choice in sorted({*alone.token_ids, *loaded.token_ids}):
        solo, busy = alone.token_ids.get(choice, []), loaded.token_ids.get(choice, [])
        place = first_difference(solo, busy)
        if place is not None:
            until = place + _SHOWN_TOKENS
            said.append(
                f"{ask.name}, choice {choice}, token {place}: alone {solo[place:until]}, "
                f"with others {busy[place:until]}; {await _gap(cluster, ask, solo, busy, place)}; "
                f"asked {_sampling(ask)}"
            )
    if not said and alone != loaded:
        said.append(f"{ask.name}: the same tokens, but alone {alone}, with others {loaded}")
    return said


async def _gap(cluster: Cluster, ask: Ask, solo: list[int], busy: list[int], place: int) -> str:
    """The difference of the two tokens' log-probabilities, after the tokens before them."""
    if place >= min(len(solo), len(busy)):
        return "one of them ended there"
    fields = {**ask.fields, "n": 1, "temperature": 0.0, "logprobs": _TOP, "max_tokens": place + 1}
    fields.pop("stop", None)
    completion = await cluster.generate(
        **fields, resume={"token_ids": solo[:place], "text_sent": 0}
    )
    (entry,) = completion.choices[0].logprobs or [{}]
    known = {top["token_id"]: float(top["logprob"]) for top in entry.get("top", [])}
    if solo[place] in known and busy[place] in known:
        return f"log-probability gap {abs(known[solo[place]] - known[busy[place]]):.6f}"
    return f"not both among the {_TOP} likeliest: {sorted(known.values(), reverse=True)[:3]} ..."


def _sampling(ask: Ask) -> dict[str, Any]:
    return {name: value for name, value in ask.fields.items() if name != "content"}
