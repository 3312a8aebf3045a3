"""Where a user's files of this project live."""

from pathlib import Path

import platformdirs

_NAME = "mlx-nats-cluster"


def cache_folder() -> Path:
    """For what can be made again: converted models. Honours XDG_CACHE_HOME on Linux."""
    return platformdirs.user_cache_path(_NAME)


def data_folder() -> Path:
    """For what must survive: ids, logs, JetStream's store. Honours XDG_DATA_HOME on Linux."""
    return platformdirs.user_data_path(_NAME)
