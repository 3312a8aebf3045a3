"""Checks of a model folder, without MLX and without reading weights."""

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from shared.errors import ModelError
from worker.models import adapters
from worker.models.file_reading import read_object
from worker.models.safetensors import tensor_bytes

WEIGHTS = "model*.safetensors"
"""The files that mlx-lm loads (mlx_lm/utils.py, load_model)."""
_INDEX = "model.safetensors.index.json"
_MAX_CONFIG_BYTES = 16_000_000
_MAX_INDEX_BYTES = 100_000_000
_SHOWN_NAMES = 4
_NUMBERED = re.compile(r"model-(?P<number>\d{1,5})-of-(?P<total>\d{1,5})\.safetensors")
"""The numbered files of weights of transformers and mlx-lm."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_OTHER_FORMATS = (".gguf", ".npz", ".h5", ".msgpack", ".onnx", ".safetensors")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A complete model folder.

    Attributes:
        weight_bytes: bytes of all tensors that mlx-lm would load.
    """

    folder: Path
    weight_bytes: int


def inspect(folder: Path, *, trust_remote_code: bool) -> ModelFolder:
    """Check a model folder. Blocks for some ms with large models.

    Raises:
        ModelError: a file is missing, broken, truncated, or would run code that is not trusted;
            the message says which file, and what to do.
    """
    check_config(folder / "config.json", f"{folder}", trust_remote_code=trust_remote_code)
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error.strerror}") from None
    weights = [name for name in sorted(names) if is_weights(name)]
    if _INDEX in names:
        _check_shards(folder, names)
    check_has_weights(names, f"{folder}")
    _check_numbers(folder, weights)
    return ModelFolder(folder, sum(tensor_bytes(folder / name) for name in weights))


def is_weights(name: str) -> bool:
    return fnmatchcase(name, WEIGHTS)


def check_config(path: Path, model: str, *, trust_remote_code: bool) -> None:
    """Check a config.json. The only code of a model that mlx-lm runs is its `model_file`;
    transformers ignores `auto_map` without trust_remote_code.

    Raises:
        ModelError: the file is missing or broken, or names code that is not trusted; the message
            names `model`.
    """
    code = read_object(path, max_bytes=_MAX_CONFIG_BYTES).get("model_file")
    if code is None:
        return
    if not trust_remote_code:
        raise ModelError(
            f"{model} contains Python code, which config.json names (model_file: "
            f"{str(code)[:80]!r}); if you trust it, set trust_remote_code: true for this model "
            "in cluster.yaml"
        )
    if not isinstance(code, str):
        raise ModelError(f"{model}: model_file in config.json is not a file name")


def check_has_weights(names: Iterable[str], model: str) -> None:
    """Check the names of a model's files.

    Raises:
        ModelError: mlx-lm would find no weights; the message names what was found instead.
    """
    names = sorted(names)
    if any(is_weights(name) for name in names):
        return
    missing = f"{model} has no {WEIGHTS}"
    advice = "choose a repository that has it, such as one of mlx-community on the hub"
    pickles = [name for name in names if name.endswith(_PICKLES)]
    others = [name for name in names if name.endswith(_OTHER_FORMATS)]
    if others:
        raise ModelError(f"{missing}; the format of {others[0]} is not supported; {advice}")
    if pickles:
        raise ModelError(
            f"{missing}; {pickles[0]} is a pickle, which is not loaded, as it can run code; "
            f"{advice}"
        )
    raise ModelError(f"{missing}, so it has no weights; {advice}")


def _check_shards(folder: Path, names: list[str]) -> None:
    """Raise ModelError if the index of the weights names a missing file."""
    index = read_object(folder / _INDEX, max_bytes=_MAX_INDEX_BYTES)
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ModelError(f"{folder / _INDEX} has no weight_map from tensors to files")
    missing = sorted(set(shards.values()) - set(names))
    if missing:
        raise ModelError(_missing_files_message(folder, missing, f", which {_INDEX} names"))


def _check_numbers(folder: Path, weights: Iterable[str]) -> None:
    """Raise ModelError if one of the numbered files is missing."""
    found = [parsed for name in weights if (parsed := _NUMBERED.fullmatch(name)) is not None]
    for total in {parsed["total"] for parsed in found}:
        present = {int(parsed["number"]) for parsed in found if parsed["total"] == total}
        absent = sorted(set(range(1, int(total) + 1)) - present)
        names = [f"model-{number:0{len(total)}}-of-{total}.safetensors" for number in absent]
        if names:
            raise ModelError(_missing_files_message(folder, names, ""))


def _missing_files_message(folder: Path, missing: Sequence[str], why: str) -> str:
    """Return the error message for an incomplete download."""
    more = ""
    if len(missing) > 1:
        shown = ", ".join(name[:100] for name in missing[1:_SHOWN_NAMES])
        dots = ", ..." if len(missing) > _SHOWN_NAMES else ""
        more = f" (and {len(missing) - 1} more): {shown}{dots}"
    return f"{folder / missing[0][:200]} is missing{why}{more}; fetch it again"


_SAMPLES = 256
_SAMPLE_BYTES = 4096
_DIGEST_BYTES = 16


def fingerprint(folder: Path, adapter: Path | None = None) -> str:
    """Return a hash of the configuration and the weights of a model and its adapter. Of each file
    of weights: its length, modification time, and evenly spaced samples. Takes some ms per file.

    Raises:
        OSError: a file cannot be read.
    """
    hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    hashed.update((folder / "config.json").read_bytes())
    for name in sorted(filter(is_weights, os.listdir(folder))):
        _add(hashed, folder / name)
    if adapter is not None:
        hashed.update((adapter / adapters.CONFIG).read_bytes())
        for name in sorted(filter(adapters.is_weights, os.listdir(adapter))):
            _add(hashed, adapter / name)
    return hashed.hexdigest()


def _add(hashed: "hashlib.blake2b", path: Path) -> None:
    """Add one file of weights to the hash."""
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        hashed.update(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())
        step = max(_SAMPLE_BYTES, status.st_size // _SAMPLES)
        for begin in range(0, status.st_size, step):
            hashed.update(os.pread(file.fileno(), _SAMPLE_BYTES, begin))
