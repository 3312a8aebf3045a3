"""Folders that hold no whole model: one sentence says what is missing or not supported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ModelError
from tests.worker.engine.embedding.conftest import WriteCase
from tests.worker.engine.embedding.random_models import write_json
from worker.engine.embedding.model import load_embedding_model

Damage = Callable[[Path], None]


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: Any) -> Damage:
    return lambda folder: write_json(folder / name, content)


def spoil(name: str, content: bytes = b"{") -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return damage


def cut(name: str, length: int) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:length])

    return damage


def change(name: str, **fields: Any) -> Damage:
    """Change a JSON file; a field of `...` is removed."""

    def damage(folder: Path) -> None:
        content = {**json.loads((folder / name).read_text()), **fields}
        write_json(folder / name, {key: one for key, one in content.items() if one is not ...})

    return damage


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def modules(*entries: tuple[str, str]) -> Damage:
    return write(
        "modules.json",
        [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in entries],
    )


_NETWORK, _POOLING = ("Transformer", ""), ("Pooling", "1_Pooling")
_DENSE = "2_Dense/config.json"
_PROMPTS = "config_sentence_transformers.json"
_SETTINGS = "sentence_bert_config.json"
_UNFIT = "its weights do not fit its config.json"

BROKEN: dict[str, tuple[str, Damage, str]] = {
    "no config": ("bert", remove("config.json"), "config.json is missing"),
    "broken config": ("bert", spoil("config.json"), "config.json is not valid JSON"),
    "no model type": ("bert", change("config.json", model_type=...), "model_type is missing"),
    "another type": (
        "bert", change("config.json", model_type="mpnet"),
        "embedding models of the model_type 'mpnet' are not supported; bert, camembert,",
    ),
    "another classifier": (
        "qwen3", change("config.json", architectures=["Qwen3ForSequenceClassification"]),
        "a classifier of the model_type 'qwen3' is not supported",
    ),
    "relative positions": (
        "bert", change("config.json", position_embedding_type="relative_key"),
        "config.json: position_embedding_type 'relative_key' is not supported",
    ),
    "an activation": (
        "bert", change("config.json", hidden_act="mish"),
        "config.json: the activation 'mish' is not supported",
    ),
    "sizes as texts": (
        "bert", change("config.json", hidden_size="32"),
        "config.json: hidden_size is '32', which is not a whole number from 1",
    ),
    "no vocabulary": ("bert", change("config.json", vocab_size=...), "vocab_size is missing"),
    "an epsilon": (
        "bert", change("config.json", layer_norm_eps=-1),
        "layer_norm_eps is -1, which is not a positive number",
    ),
    "a padding id": (
        "xlm-roberta", change("config.json", pad_token_id=48),
        "config.json: pad_token_id 48 is outside the vocabulary",
    ),
    "pickled weights": ("bert", pickle_only, "model.bin is a pickle, which is not loaded"),
    "heads": (
        "modernbert", change("config.json", num_attention_heads=5),
        "hidden_size 32 is not a multiple of 5 heads",
    ),
    "scaled positions": (
        "modernbert", change("config.json", rope_scaling={"type": "yarn", "factor": 2}),
        "rotary positions of the type 'yarn' are not supported",
    ),
    "layer types": (
        "modernbert", change("config.json", layer_types=["full_attention"]),
        "layer_types is not a list of 5 times full_attention or sliding_attention",
    ),
    "no pattern": (
        "gemma3", change("config.json", layer_types=["full_attention"] * 3 + ["sliding_attention"]),
        "layer_types does not repeat one pattern",
    ),
    "a causal Gemma": (
        "gemma3", change("config.json", use_bidirectional_attention=False),
        "gemma3_text without use_bidirectional_attention is not supported",
    ),
    "code": ("bert", change("config.json", model_file="model.py"), "contains Python code"),
    "no weights": ("bert", remove("model.safetensors"), "so it has no weights"),
    "cut weights": ("bert", cut("model.safetensors", 2000), "model.safetensors is cut short"),
    "too few layers": (
        "bert", change("config.json", num_hidden_layers=4),
        f"{_UNFIT}: 16 are missing: body.layers.3.attention_norm.bias",
    ),
    "too many layers": (
        "bert", change("config.json", num_hidden_layers=2), f"{_UNFIT}: 16 have no place"
    ),
    "another size": (
        "bert", change("config.json", vocab_size=47),
        f"{_UNFIT}: body.embeddings.word_embeddings.weight has the shape (48, 32)",
    ),
    "another number of labels": (
        "bert-classifier", change("config.json", id2label={"0": "a", "1": "b"}),
        f"{_UNFIT}: head.classifier",
    ),
    "no classifier": (
        "bert", change("config.json", architectures=["BertForSequenceClassification"]),
        f"{_UNFIT}: 2 are missing: head.classifier",
    ),
    "no tokenizer": ("bert", remove("tokenizer.json"), "it has no readable tokenizer"),
    "a broken tokenizer": ("bert", spoil("tokenizer.json"), "one of its files is not valid JSON"),
    "modules are no JSON": ("bert", spoil("modules.json"), "modules.json is not valid JSON"),
    "modules are no list": ("bert", write("modules.json", {}), "is not a list of modules"),
    "a module without a path": (
        "bert", write("modules.json", [{"type": "Transformer"}]),
        "modules.json: a module has no type and path",
    ),
    "no modules": ("bert", modules(), "modules.json: the first module is not a Transformer"),
    "no network": ("bert", modules(_POOLING), "the first module is not a Transformer"),
    "two networks": ("bert", modules(_NETWORK, _NETWORK), "more than one Transformer"),
    "no pooling": (
        "bert", modules(_NETWORK, ("Normalize", "2_Normalize")),
        "one module of the type Pooling has to follow the Transformer; it has Normalize",
    ),
    "two poolings": (
        "bert", modules(_NETWORK, _POOLING, _POOLING), "one module of the type Pooling has to"
    ),
    "another module": (
        "bert", modules(_NETWORK, _POOLING, ("LSTM", "2_LSTM")),
        "modules of the type 'sentence_transformers.models.LSTM' are not supported",
    ),
    "a path outside": (
        "bert", modules(_NETWORK, ("Pooling", "../1_Pooling")),
        "the path '../1_Pooling' of a module is outside the model's folder",
    ),
    "an absolute path": ("bert", modules(("Transformer", "/etc")), "is outside the model's folder"),
    "no pooling config": ("bert", remove("1_Pooling/config.json"), "1_Pooling/config.json is miss"),
    "a pooling of another size": (
        "bert", change("1_Pooling/config.json", word_embedding_dimension=33),
        "1_Pooling/config.json: word_embedding_dimension is 33, but the network's states have 32",
    ),
    "a pooling mode": (
        "bert", change("1_Pooling/config.json", pooling_mode="median"),
        "1_Pooling/config.json: the pooling mode 'median' is not supported",
    ),
    "no Gemma without modules": (
        "gemma3", remove("modules.json"),
        "modules.json is missing, and its vectors cannot be computed without it",
    ),
    "no dense config": ("gemma3", remove(_DENSE), f"{_DENSE} is missing"),
    "no dense weights": (
        "gemma3", remove("2_Dense/model.safetensors"),
        "2_Dense/model.safetensors is missing; weights in other formats are not supported",
    ),
    "cut dense weights": ("gemma3", cut("2_Dense/model.safetensors", 200), "is cut short"),
    "other dense weights": (
        "gemma3", change(_DENSE, out_features=65),
        "2_Dense/model.safetensors: linear.weight has the shape (64, 32) instead of (65, 32)",
    ),
    "a dense bias": ("gemma3", change(_DENSE, bias=True), "model.safetensors has no linear.bias"),
    "dense inputs": (
        "gemma3", change(_DENSE, in_features=31),
        f"{_DENSE}: in_features is 31, but the vectors before have 32 values",
    ),
    "a dense activation": (
        "gemma3", change(_DENSE, activation_function="os.system"),
        f"{_DENSE}: the activation_function 'os.system' is not supported",
    ),
    "a dense input": (
        "gemma3", change(_DENSE, module_input_name="token_embeddings"),
        "module_input_name 'token_embeddings' is not supported",
    ),
    "a dense residual": ("gemma3", change(_DENSE, use_residual=True), "use_residual is not supp"),
    "prompts": (
        "bert", change(_PROMPTS, prompts=["query: "]), f"{_PROMPTS}: prompts is not an object"
    ),
    "a default prompt": (
        "bert", change(_PROMPTS, default_prompt_name="other"),
        f"{_PROMPTS}: default_prompt_name 'other' is not one of its prompts",
    ),
    "a truncation": (
        "bert", change(_PROMPTS, truncate_dim=33),
        "truncate_dim is 33, but the vectors have 32 dimensions",
    ),
    "settings": (
        "bert", change(_SETTINGS, max_seq_length="long"),
        f"{_SETTINGS}: max_seq_length is 'long', which is not a whole number from 1",
    ),
    "broken settings": ("bert", spoil(_SETTINGS), f"{_SETTINGS} is not valid JSON"),
}  # fmt: skip


@pytest.mark.parametrize("problem", BROKEN)
def test_a_broken_folder(problem: str, write_case: WriteCase) -> None:
    name, damage, message = BROKEN[problem]
    folder = write_case(name)
    damage(folder)
    with pytest.raises(ModelError) as caught:
        load_embedding_model(folder)
    assert message in caught.value.message
    assert caught.value.message.startswith(str(folder))
    assert "\n" not in caught.value.message
