"""Small model folders with weights that are random but the same everywhere: by name and shape.

`make_references.py` imports this in an environment without MLX.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

CHARACTERS = "abcdefghijklmnopqrstuvwxyzABC .,:?!"
PADDING, START, END, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
VOCABULARY = 48
"""More than the tokenizer's tokens."""

PROMPTS = {"query": "query: ", "document": "text. "}
SENTENCES = [
    "a",
    "the cat sat on the mat.",
    "Are longer sentences, which end far beyond a window, embedded as well? yes: all of them are.",
    "so it goes",
    "what is this? Unknown signs are here: 1234 \u00fc \U0001f600",
]
PAIRS = [
    ("what is a cat?", "a cat is an animal."),
    ("a", "b"),
    ("where is it", "this answer goes on and on, until it has left the window of the question."),
]

_TEMPLATES = {
    "bert": (f"{START} $A {END}", f"{START} $A {END} $B:1 {END}:1"),
    "roberta": (f"{START} $A {END}", f"{START} $A {END} {END} $B {END}"),
    "end only": (f"$A {END}", f"$A $B {END}"),
}


def make_weights(shapes: Mapping[str, Sequence[int]], *, around_zero: bool) -> dict[str, Any]:
    """Weights by name and shape.

    Args:
        around_zero: whether weights of norms are the difference from 1, as in Gemma.
    """
    return {
        name: _array(name, tuple(shape), around_zero=around_zero)
        for name, shape in sorted(shapes.items())
    }


def _array(name: str, shape: tuple[int, ...], *, around_zero: bool) -> Any:
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if len(shape) == 2:
        scale = 1.0 if "embed" in name else 1.5 / np.sqrt(shape[1])
        return (values * scale).astype(np.float32)
    is_norm = "norm" in name.lower() and name.endswith("weight")
    return (values * 0.2 + (1 if is_norm and not around_zero else 0)).astype(np.float32)


def make_tokenizer(template: str, padding_id: int, *, has_types: bool = True) -> Tokenizer:
    """One token for each character.

    Args:
        template: bert, roberta or end only.
        padding_id: 0 or 1.
    """
    specials = [PADDING, START] if padding_id == 0 else [START, PADDING]
    tokens = [*specials, END, UNKNOWN, *CHARACTERS]
    tokenizer = Tokenizer(WordLevel({token: i for i, token in enumerate(tokens)}, UNKNOWN))
    tokenizer.add_special_tokens([PADDING, START, END, UNKNOWN])
    tokenizer.pre_tokenizer = Split(Regex("."), "isolated")
    single, pair = _TEMPLATES[template]
    tokenizer.post_processor = TemplateProcessing(
        single=single,
        pair=pair if has_types else pair.replace(":1", ""),
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (START, END)],
    )
    return tokenizer


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_tokenizer(
    folder: Path, template: str, padding_id: int, inputs: Sequence[str], **fields: Any
) -> None:
    make_tokenizer(template, padding_id).save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PADDING,
            "cls_token": START,
            "sep_token": END,
            "unk_token": UNKNOWN,
            "model_input_names": list(inputs),
            **fields,
        },
    )


def write_weights(path: Path, weights: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(dict(weights), str(path), metadata={"format": "pt"})


def write_modules(folder: Path, modules: Sequence[tuple[str, dict[str, Any] | None]]) -> None:
    """Write modules.json and the config of each module after the network.

    Args:
        modules: types and configs; the weights of a Dense module are random.
    """
    entries = [_entry(0, "Transformer", "")]
    for index, (kind, config) in enumerate(modules, start=1):
        path = f"{index}_{kind}"
        entries.append(_entry(index, kind, path))
        if config is not None:
            write_json(folder / path / "config.json", config)
        if kind == "Dense" and config is not None:
            sizes = (config["out_features"], config["in_features"])
            shapes: dict[str, tuple[int, ...]] = {f"{path}.weight": sizes}
            if config.get("bias", True):
                shapes[f"{path}.bias"] = (config["out_features"],)
            weights = make_weights(shapes, around_zero=False)
            named = {name.replace(path, "linear"): array for name, array in weights.items()}
            write_weights(folder / path / "model.safetensors", named)
    write_json(folder / "modules.json", entries)


def _entry(index: int, kind: str, path: str) -> dict[str, Any]:
    return {
        "idx": index,
        "name": f"{index}",
        "path": path,
        "type": f"sentence_transformers.models.{kind}",
    }
