"""What tells one model's weights from another's, without reading all of them."""

import hashlib
import os
from pathlib import Path

from worker.models.files import is_weights

_SAMPLES = 256
_SAMPLE_BYTES = 4096
_DIGEST_BYTES = 16


def fingerprint(folder: Path) -> str:
    """Of the configuration and the weights in a model folder: of each file of weights its length,
    when it was changed, and samples from all over it. Takes some ms a file.

    Raises:
        OSError: a file cannot be read.
    """
    hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    hashed.update((folder / "config.json").read_bytes())
    for name in sorted(filter(is_weights, os.listdir(folder))):
        with open(folder / name, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            hashed.update(f"{name} {status.st_size} {status.st_mtime_ns}".encode())
            step = max(_SAMPLE_BYTES, status.st_size // _SAMPLES)
            for begin in range(0, status.st_size, step):
                hashed.update(os.pread(file.fileno(), _SAMPLE_BYTES, begin))
    return hashed.hexdigest()
