"""What benchmarks ask for: prompts as token ids, so that all sides get the same."""

import functools
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worker.models import demo_model

_SUBJECTS = (
    "the sea", "a lighthouse", "bread", "the moon", "trains", "winter", "bees", "a clock",
    "rivers", "glass", "the desert", "music", "a bridge", "salt", "clouds", "paper",
    "stars", "an island", "wood", "the wind", "a garden", "coal", "snow", "maps",
    "coffee", "a mountain", "silk", "rain", "iron", "the forest", "a harbour", "light",
)  # fmt: skip
_PAGES = ("README.md", "docs/structure.md", "docs/wire.md", "docs/worker.md")


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


def prose(lengths: Sequence[int]) -> list[list[int]]:
    """Pieces of this project's own pages, of these lengths in tokens and as far apart as may be."""
    root = Path(__file__).parents[1]
    ids = [token for page in _PAGES for token in tokenizer().encode((root / page).read_text())]
    gap = (len(ids) - sum(lengths)) // len(lengths)
    if gap < 0:
        raise SystemExit(f"the pages have {len(ids)} tokens, {sum(lengths)} are wanted")
    starts = itertools.accumulate((length + gap for length in lengths), initial=0)
    return [ids[start : start + length] for start, length in zip(starts, lengths, strict=False)]


def _subject(number: int) -> str:
    first, second = number % len(_SUBJECTS), number // len(_SUBJECTS)
    return _SUBJECTS[first] if second == 0 else f"{_SUBJECTS[first]} and {_SUBJECTS[-second]}"
