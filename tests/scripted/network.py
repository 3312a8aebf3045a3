# A network for mlx-lm's `model_file`: it says what the scripts in its folder say. It is loaded by
# path, not as a module: so no postponed annotations, and nothing of this project.
#
# It knows the whole text through the KV cache alone, where each token's id is kept as a number: so
# prefix caches, batches and migration have to keep it as they do for every model.
#
# config.json has `turn_markers`, with which users' and tools' turns begin, and
# `generation_prompts`: the first of them behind the beginning of the last turn ends the prompt.
# scripts.json is a list of {"when", "say"}: the first of which `when` stands in the last turn.

import dataclasses
import inspect
import json
import pathlib
import re
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.base import create_attention_mask
from tokenizers import Tokenizer

_FOLDER = pathlib.Path(__file__).parent
_SURE = 60.0
_THOUGHT = re.compile(r"\A<think>.*?</think>\n\n", re.DOTALL)
_NO_THOUGHT = "<think>\n\n</think>\n\n"


@dataclasses.dataclass
class ModelArgs:
    model_type: str
    vocab_size: int
    eos_token_id: Any
    generation_prompts: list[str]
    turn_markers: list[str]

    @classmethod
    def from_dict(cls, params: dict[str, Any]) -> "ModelArgs":
        known = inspect.signature(cls).parameters
        return cls(**{key: value for key, value in params.items() if key in known})


class Model(nn.Module):  # type: ignore[name-defined,misc]
    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args = args
        self.scale = mx.ones((1,))
        self.layers = [nn.Identity()]  # type: ignore[attr-defined]
        self._tokenizer = Tokenizer.from_file(str(_FOLDER / "tokenizer.json"))
        self._prompts = [self._encode(text) for text in args.generation_prompts]
        self._no_thought = self._encode(_NO_THOUGHT)
        self._turns = [self._encode(text) for text in args.turn_markers]
        self._scripts = json.loads((_FOLDER / "scripts.json").read_text())
        self._known: dict[tuple[int, ...], list[int]] = {}

    def __call__(self, inputs: mx.array, cache: Any = None, **_: Any) -> mx.array:
        rows, length = inputs.shape
        first = cache[0] if cache else None
        mask = create_attention_mask(inputs, first, return_array=True)
        ids = (inputs + 1).astype(mx.float32)[:, None, :, None]
        keys = first.update_and_fetch(ids, ids)[0] if first is not None else ids
        texts = np.array(keys[:, 0, :, 0]).astype(np.int64) - 1
        width = texts.shape[1]
        if mask is None:
            seen = np.tri(length, width, width - length, dtype=bool)[None]
        else:
            seen = np.array(mask).reshape(-1, *mask.shape[-2:])
        seen = np.broadcast_to(seen, (rows, length, width))
        said = np.full((rows, length), -1, dtype=np.int32)
        for row in range(rows):
            begins = self._answer_at(texts[row])
            for place in range(length):
                visible = seen[row, place].nonzero()[0]
                if begins is not None and len(visible) and visible[-1] >= begins - 1:
                    said[row, place] = self._next(texts[row][visible].tolist(), begins)
        return mx.where(mx.arange(self.args.vocab_size) == mx.array(said)[..., None], _SURE, 0.0)

    def _answer_at(self, ids: Any) -> int | None:
        """The place where the answer begins; None where it does not."""
        turn = max((place for each in self._turns for place in _places(ids, each)), default=0)
        ends = [place for each in self._prompts for place in _places(ids[turn:], each)]
        return turn + min(ends) if ends else None

    def _next(self, ids: list[int], begins: int) -> int:
        prompt, answer = ids[:begins], ids[begins:]
        script = self._script(prompt)
        if answer[: len(self._no_thought)] == self._no_thought:
            script = self._encode(_THOUGHT.sub(_NO_THOUGHT, self._decode(script)))
        if answer == script[: len(answer)]:
            rest = script[len(answer) :]
        else:  # it had to say it in other tokens
            whole, so_far = self._decode(script), self._decode(answer)
            rest = self._encode(whole[len(so_far) :]) if whole.startswith(so_far) else []
        ends = self.args.eos_token_id
        return int(rest[0] if rest else ends[0] if isinstance(ends, list) else ends)

    def _script(self, prompt: list[int]) -> list[int]:
        key = tuple(prompt)
        if key not in self._known:
            text = self._decode(prompt)
            at = max((text.rfind(marker) for marker in self.args.turn_markers), default=0)
            turn = text[max(0, at) :]
            say = next((each["say"] for each in self._scripts if each["when"] in turn), "")
            self._known = {**self._known, key: self._encode(say)}
        return self._known[key]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


def _places(ids: Any, part: list[int]) -> list[int]:
    """Behind each occurrence of a part."""
    size = len(part)
    if len(ids) < size:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(ids, size)
    return [int(place) + size for place in (windows == part).all(axis=1).nonzero()[0]]
