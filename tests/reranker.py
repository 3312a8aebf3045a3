"""A reranker in the form of `BertForSequenceClassification`: MiniLM's network with random weights
in its head, so that tokens and sizes are real, and scores mean nothing."""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

_HIDDEN = 384
_COPIED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def make_reranker(minilm: Path, folder: Path, *, labels: int = 1) -> Path:
    """Write the model into `folder`, which must not exist; return it."""
    folder.mkdir(parents=True)
    for name in _COPIED:
        shutil.copy(minilm / name, folder)
    config = json.loads((minilm / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification"]
    config["id2label"] = {str(label): f"LABEL_{label}" for label in range(labels)}
    (folder / "config.json").write_text(json.dumps(config))
    weights = {
        f"bert.{name}": array for name, array in load_file(minilm / "model.safetensors").items()
    }
    draw = np.random.RandomState(7)
    weights["classifier.weight"] = draw.standard_normal((labels, _HIDDEN)).astype(np.float32)
    weights["classifier.bias"] = np.zeros(labels, dtype=np.float32)
    save_file(weights, folder / "model.safetensors")
    return folder
