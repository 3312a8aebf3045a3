"""Requests that differ in everything, each with a marker word that no other one has."""

import random
from typing import Any

from tests.faults.asks import Ask

Span = tuple[int, int]
"""At least, and at most."""
_SYLLABLES = "bra dum fel gon hik jor kul mav nip quo rez sud tix vor wam zel".split()
_SENTENCES = (
    "The harbour was quiet that morning.",
    "Nobody had seen the old map for years.",
    "She counted the boxes twice and wrote the number down.",
    "Rain fell on the tin roof until noon.",
    "The train to the north leaves at half past nine.",
    "Two engineers repaired the bridge over the river.",
    "He prefers tea, but there was only coffee.",
    "A small light blinked at the end of the hall.",
)
_SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.7, "top_k": 40},
    {"temperature": 1.1, "min_p": 0.05},
    {"temperature": 0.0, "repetition_penalty": 1.2},
    {"temperature": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 0.6, "top_p": 0.8, "top_k": 100, "min_p": 0.01},
    {"temperature": 0.0, "logit_bias": {"28": -2.0, "32": 1.5, "101": -3.0}},
    {"temperature": 1.3, "top_p": 0.95, "repetition_penalty": 1.1},
)
_EXTRAS: tuple[dict[str, Any], ...] = (
    {},
    {"logprobs": 3},
    {},
    {"stop": ["the", " and "]},
    {"n": 2},
    {"logprobs": 0, "stop": "."},
    {},
)


def marker(number: int, chance: random.Random) -> str:
    """A word that stands in no text, and in no other marker."""
    return "".join(chance.choices(_SYLLABLES, k=2)).capitalize() + str(100 + number)


def markers(asks: list[Ask]) -> dict[str, str]:
    """The marker of each ask, by its name: the first word in quotes of its prompt."""
    return {ask.name: ask.fields["content"].split('"')[1] for ask in asks}


def differing_asks(
    count: int, seed: int, *, prompt: Span, answer: Span, characters: bool
) -> list[Ask]:
    """The load of one seed. Prompts have so many words (or characters, which are the tokens of
    the tiny model) and answers so many tokens."""
    chance = random.Random(seed)
    return [
        Ask(
            f"client {number}",
            {
                "content": _content(number, chance.randint(*prompt), characters, chance),
                "max_tokens": chance.randint(*answer),
                "seed": chance.randrange(2**50),
                "timeout_ms": 3_600_000,
                **_SAMPLING[number % len(_SAMPLING)],
                **_EXTRAS[number % len(_EXTRAS)],
            },
        )
        for number in range(count)
    ]


def _content(number: int, length: int, characters: bool, chance: random.Random) -> str:
    """A question whose answer is the marker, filled up to a length."""
    name, question = f'My name is "{marker(number, chance)}".', "What is my name?"
    text = " ".join(chance.choices(_SENTENCES, k=80))
    if characters:
        return f"{name} {text[: max(0, length - len(name + question))]} {question}"
    words = text.split()[: max(0, length - len((name + question).split()))]
    return " ".join([name, *words, question])
