"""The worker's id: stored on disk, and stable over restarts."""

import socket

from shared.folders import data_folder
from shared.ids import WorkerId, is_name, name_from


def stable_worker_id() -> WorkerId:
    """Return the id that this machine used before, or derive one from the host name."""
    path = data_folder() / "worker-id"
    if path.is_file() and is_name(stored := path.read_text().strip()):
        return WorkerId(stored)
    derived = name_from(socket.gethostname())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(derived + "\n")
    return WorkerId(derived)
