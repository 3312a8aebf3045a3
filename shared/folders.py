"""The folders of this project for the current user."""

from pathlib import Path

import platformdirs

_NAME = "mlx-nats-cluster"


def cache_folder() -> Path:
    """Return the folder of files that can be recreated, as converted models.

    Honours XDG_CACHE_HOME on Linux.
    """
    return platformdirs.user_cache_path(_NAME)


def data_folder() -> Path:
    """Return the folder of files that must survive: ids, logs, JetStream's store.

    Honours XDG_DATA_HOME on Linux.
    """
    return platformdirs.user_data_path(_NAME)
