"""Programs of others, each in a virtual environment of its own, run as their users run them."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_VENVS = Path(__file__).parents[3] / ".venv-programs"


def program(name: str, command: str) -> str:
    """The path of a command in the environment of a program."""
    path = _VENVS / name / "bin" / command
    assert path.exists(), f"{name} is not installed: run `make .make/programs` first"
    return str(path)


def environment(home: Path, **variables: str) -> Mapping[str, str]:
    """What a program may see: nothing of this user's own settings and keys."""
    home.mkdir(exist_ok=True)
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **variables}


def run(
    command: list[str], environment: Mapping[str, str], said: str | None = None
) -> "subprocess.CompletedProcess[str]":
    """Its end, and what it wrote.

    Args:
        said: what it reads on stdin; nothing at all where None.
    """
    return subprocess.run(
        command,
        env=environment,
        input=said or "",
        capture_output=True,
        text=True,
        timeout=240,
    )
