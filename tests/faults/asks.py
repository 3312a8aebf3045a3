"""What the load asks for: mixed lengths, mixed sampling, all of it a function of a seed."""

import random
from dataclasses import dataclass
from typing import Any

ENDLESS = {"256": -100.0, "257": -100.0}
"""A bias that keeps the tiny model from ending its answer before `max_tokens`."""
_WORDS = "sea wind stone river light tower salt winter orchard mirror letter harbour".split()


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, without an id: each time it is sent it gets a new one, and as its seed is
    given, the same answer."""

    name: str
    fields: dict[str, Any]


def mixed_asks(count: int, *, shortest: int, longest: int, seed: int = 1) -> list[Ask]:
    """Half of them greedy, half drawn in several ways; answers of `shortest` to `longest`
    tokens, which only the tiny model reaches exactly."""
    chance = random.Random(seed)
    return [
        Ask(
            f"ask {number}",
            {
                "prompt": _prompt(number, chance),
                "max_tokens": chance.randint(shortest, longest),
                "seed": chance.randrange(2**40),
                "logit_bias": ENDLESS,
                **_sampling(number, chance),
            },
        )
        for number in range(count)
    ]


def _prompt(number: int, chance: random.Random) -> str:
    return f"{number}. " + " ".join(chance.choices(_WORDS, k=chance.randint(1, 20)))


def _sampling(number: int, chance: random.Random) -> dict[str, Any]:
    if number % 2 == 0:
        return {"temperature": 0.0}
    drawn = {"temperature": round(chance.uniform(0.3, 1.2), 2)}
    narrowed: list[dict[str, Any]] = [
        {},
        {"top_p": round(chance.uniform(0.5, 0.95), 2)},
        {"top_k": chance.randint(2, 40)},
        {"min_p": round(chance.uniform(0.02, 0.2), 2)},
    ]
    return drawn | narrowed[number // 2 % len(narrowed)]
