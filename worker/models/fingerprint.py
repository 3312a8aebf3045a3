"""Fingerprints of models' weights, without reading all of a file."""

import hashlib
import os
from pathlib import Path

from worker.models import adapters
from worker.models.files import is_weights

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
