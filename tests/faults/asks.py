"""The requests of a load: all ways of sampling, stop strings, several choices, sessions. All of it
is a function of a seed."""

import random
from dataclasses import dataclass
from typing import Any

ENDLESS = {"256": -100.0, "257": -100.0}
"""A bias that keeps the tiny model from ending its answer before `max_tokens`."""
_WORDS = "sea wind stone river light tower salt winter orchard mirror letter harbour".split()
_TURN_WORDS = "tide ember quarry lantern thistle harbour mortar willow".split()


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


def long_ask(tokens: int) -> Ask:
    """A greedy answer of that many tokens of the tiny model."""
    fields = {"prompt": "salt and stone", "max_tokens": tokens, "seed": 1, "temperature": 0.0}
    return Ask("long", {**fields, "logit_bias": ENDLESS, "timeout_ms": 600_000})


@dataclass(frozen=True, slots=True)
class Conversation:
    """A session: each turn is an `Ask` that holds the turns before, with their true answers."""

    name: str
    turns: list[Ask]


def varied_asks(count: int, *, shortest: int, longest: int, seed: int) -> list[Ask]:
    """Those of the fault tests, and on top of them penalties, stop strings, log-probabilities,
    several choices, each for some."""
    chance = random.Random(seed)
    asks = []
    for number, ask in enumerate(mixed_asks(count, shortest=shortest, longest=longest, seed=seed)):
        more: list[dict[str, Any]] = [
            {},
            {"n": 2},
            {"repetition_penalty": 1.2, "frequency_penalty": 0.3},
            {"stop": [chance.choice("etaoin"), "qu"]},
            {"logprobs": 1},
            {"presence_penalty": 0.5, "priority": chance.choice(["high", "medium", "low"])},
        ]
        asks.append(Ask(ask.name, ask.fields | more[number % len(more)]))
    return asks


def next_turn(name: str, said: list[dict[str, Any]], number: int, seed: int, tokens: int) -> Ask:
    """A turn of a conversation after what was said."""
    chance = random.Random(f"{seed} {name} {number}")
    question = " ".join(chance.choices(_TURN_WORDS, k=6))
    return Ask(
        f"{name}, turn {number}",
        {
            "messages": [*said, {"role": "user", "content": question}],
            "max_tokens": chance.randint(tokens // 2, tokens),
            "temperature": 0.7 * (number % 2),
            "seed": chance.randrange(2**40),
            "logit_bias": ENDLESS,
        },
    )
