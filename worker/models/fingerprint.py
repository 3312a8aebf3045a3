"""What tells one model's weights from another's, without reading all of them."""

import hashlib
import os
from pathlib import Path

from worker.models import adapters
from worker.models.files import is_weights

_SAMPLES = 256
_SAMPLE_BYTES = 4096
_DIGEST_BYTES = 16


def fingerprint(folder: Path, adapter: Path | None = None) -> str:
    """Of the configuration and the weights in a model folder, and in that of its adapter: of each
    file of weights its length, when it was changed, and samples from all over it. Takes some ms a
    file.

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
    """Add the samples of one file."""
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        hashed.update(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())
        step = max(_SAMPLE_BYTES, status.st_size // _SAMPLES)
        for begin in range(0, status.st_size, step):
            hashed.update(os.pread(file.fileno(), _SAMPLE_BYTES, begin))
