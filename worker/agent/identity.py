"""The worker's name: stable over restarts, kept on disk."""

import socket

from shared.folders import data_folder
from shared.ids import WorkerId, is_name, name_from


def stable_worker_id() -> WorkerId:
    """The name this machine used before, or one made from its host name."""
    path = data_folder() / "worker-id"
    if path.is_file() and is_name(kept := path.read_text().strip()):
        return WorkerId(kept)
    made = name_from(socket.gethostname())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made + "\n")
    return WorkerId(made)
