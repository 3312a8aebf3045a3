"""Small model folders, written by hand: the tests that use them never load them."""

import json
import struct
from pathlib import Path
from random import Random
from typing import Any


def safetensors(size_bytes: int, *, seed: int = 1) -> bytes:
    """A file with one tensor of that many random bytes."""
    tensor = {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}
    header = {"__metadata__": {"format": "mlx"}, "model.weight": tensor}
    return with_header(header, Random(seed).randbytes(size_bytes))


def with_header(header: Any, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_model(folder: Path, *, shards_bytes: tuple[int, ...] = (1000,), **config: Any) -> Path:
    """A folder with what a model needs, and with more than that."""
    (folder / "onnx").mkdir(parents=True)
    config = {"model_type": "llama", "vocab_size": 259, **config}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "README.md").write_text("# A model")
    (folder / "modeling.py").write_text("print('code')")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "onnx" / "config.json").write_text("{}")
    names = [
        "model.safetensors" if len(shards_bytes) == 1 else f"model-{number:05}.safetensors"
        for number in range(1, len(shards_bytes) + 1)
    ]
    for seed, (name, size_bytes) in enumerate(zip(names, shards_bytes, strict=True)):
        (folder / name).write_bytes(safetensors(size_bytes, seed=seed))
    if len(names) > 1:
        index = {"weight_map": {f"layer.{name}": name for name in names}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_adapter(folder: Path, *, peft: bool = False, **config: Any) -> Path:
    """A folder with what an adapter needs, in mlx-lm's format or PEFT's; a field of None is left
    out."""
    folder.mkdir(parents=True)
    parameters = {"rank": 8, "scale": 20.0, "dropout": 0.0}
    own: dict[str, Any] = {"num_layers": 2, "lora_parameters": parameters}
    fields = {**({"peft_type": "LORA", "r": 8, "lora_alpha": 16} if peft else own), **config}
    kept = {name: value for name, value in fields.items() if value is not None}
    (folder / "adapter_config.json").write_text(json.dumps(kept))
    name = "adapter_model.safetensors" if peft else "adapters.safetensors"
    (folder / name).write_bytes(safetensors(100))
    return folder
