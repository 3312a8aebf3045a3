"""Where agents do their tasks, as their users would start them, and what came of it."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.agents.installed import Installed, NodePackage, NotInstalled
from tests.agents.models import ANSWER, CONTENT, COPY
from tests.controller.gateway.gateway_process import GatewayProcess
from tests.processes import ClusterProcess

_LIMIT_S = 240
_TASKS = Path(__file__).parent / "tasks"
done: list[tuple[str, str, str]] = []
"""Client, version and what it did, of all that were tried."""


@dataclass(frozen=True)
class Place:
    folder: Path
    cluster: ClusterProcess
    gateway: GatewayProcess

    @property
    def url(self) -> str:
        return self.gateway.url

    def work(self, name: str) -> Path:
        """An agent's own folder, without what it made before."""
        folder = self.folder / "work" / name
        folder.mkdir(parents=True, exist_ok=True)
        for made in (ANSWER, COPY):
            (folder / made).unlink(missing_ok=True)
        return folder

    def environment(self, name: str, **variables: str) -> dict[str, str]:
        """What an agent may see: nothing of this user's own settings and keys."""
        home = self.folder / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        path = os.environ["PATH"]
        return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "NO_COLOR": "1", **variables}

    def run(
        self, command: list[str], folder: Path, environment: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[str]":
        """What it said; it has ended well."""
        ended = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=_LIMIT_S,
        )  # fmt: skip
        assert ended.returncode == 0, f"{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
        return ended

    def run_task(self, package: Installed, script: str, *arguments: str) -> str:
        """What one of our scripts with a framework said; the files that it made are there."""
        if isinstance(package, NodePackage):
            command = command_of(package, script)
        else:
            command = [*command_of(package), str(_TASKS / script)]
        name = "-".join((Path(script).stem, *arguments))
        folder = self.work(name)
        command += [self.url, *arguments]
        said = self.run(command, folder, self.environment(name)).stdout
        check(folder)
        return said


def command_of(package: Installed, name: str | None = None) -> list[str]:
    """A command of it; the test is skipped where it is not there."""
    try:
        return package.command(name) if name is not None else package.command()
    except NotInstalled as missing:
        pytest.skip(str(missing))


def check(folder: Path) -> None:
    """The files of the task are there."""
    for made in (ANSWER, COPY):
        assert (folder / made).read_text() == CONTENT


def note(package: Installed, what: str, *, client: str | None = None) -> None:
    """A row of the table."""
    done.append((client or package.package, package.version, what))
