"""Folders of models that crash."""

import json
import shutil
from pathlib import Path
from typing import Any

_NETWORK = Path(__file__).with_name("network.py")


def make_crashing_model(folder: Path, like: Path, *, at: str | int, by: str) -> dict[str, Any]:
    """Write a model folder: a llama as in another folder, but that it crashes; see `network.py`.
    Returns its entry in the settings."""
    shutil.copytree(like, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_file": "network.py", "crash": {"at": at, "by": by}}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(_NETWORK, folder / "network.py")
    return {"path": str(folder), "trust_remote_code": True}
