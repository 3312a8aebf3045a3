"""What is asked for under faults: all ways of drawing, stop strings, several choices, sessions.
All of it is a function of a seed."""

import random
from dataclasses import dataclass
from typing import Any

from tests.faults.asks import ENDLESS, Ask, mixed_asks

_WORDS = "tide ember quarry lantern thistle harbour mortar willow".split()


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
    question = " ".join(chance.choices(_WORDS, k=6))
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
