"""Files that hold secrets."""

import os
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically, readable for its owner only.

    Raises:
        OSError: the file cannot be written.
    """
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
