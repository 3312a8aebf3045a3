"""What benchmarks ask for: prompts as token ids, so that all sides get the same."""

import functools
import random
from typing import Any

from worker import demo_model

_SUBJECTS = (
    "the sea", "a lighthouse", "bread", "the moon", "trains", "winter", "bees", "a clock",
    "rivers", "glass", "the desert", "music", "a bridge", "salt", "clouds", "paper",
    "stars", "an island", "wood", "the wind", "a garden", "coal", "snow", "maps",
    "coffee", "a mountain", "silk", "rain", "iron", "the forest", "a harbour", "light",
)  # fmt: skip


@functools.cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(demo_model.folder()))


def story_prompts(count: int) -> list[list[int]]:
    """Chat prompts of nearly the same length."""
    return [
        tokenizer().apply_chat_template(
            [{"role": "user", "content": f"Write a short story about {_subject(number)}."}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for number in range(count)
    ]


def mixed_prompts(count: int, shortest: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Prompts of random lengths that begin differently from the first token on."""
    draw = random.Random(seed)
    words = tokenizer().encode(" ".join(_SUBJECTS) + " tell me more about it, please, now.")
    return [
        [draw.choice(words) for _ in range(draw.randint(shortest, longest))] for _ in range(count)
    ]


def _subject(number: int) -> str:
    first, second = number % len(_SUBJECTS), number // len(_SUBJECTS)
    return _SUBJECTS[first] if second == 0 else f"{_SUBJECTS[first]} and {_SUBJECTS[-second]}"
