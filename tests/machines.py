"""Machines that join a cluster, each a home of its own on this one."""

import json
import os
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

from tests.processes import COMMON_SETTINGS, SCRIPTS, free_port, wait_for


class Machine:
    """A home of its own, in which commands run.

    Attributes:
        environment: of the commands.
    """

    def __init__(self, folder: Path, stack: ExitStack, model: Path | None = None) -> None:
        folder.mkdir()
        self._stack = stack
        self.environment = {
            **os.environ,
            "HOME": str(folder),
            "XDG_DATA_HOME": str(folder / "data"),
            **COMMON_SETTINGS,
        }
        if model is not None:
            self.environment["CLUSTER__SKILLS"] = json.dumps({"chat": [str(model)]})
        self.folder = folder

    def run(self, *command: str, given: str = "", fails: bool = False) -> str:
        """What it says; on stderr where it fails."""
        done = subprocess.run(
            [SCRIPTS / command[0], *command[1:]],
            env=self.environment,
            cwd=self.folder,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    def shell(self, line: str, given: str = "") -> str:
        """What a line says that is typed here."""
        environment = {**self.environment, "PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            env=environment,
            cwd=self.folder,
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def log(self, command: str) -> str:
        """What the commands of that name have said that were started."""
        return (self.folder / f"{command}.log").read_text()

    def start(self, *command: str) -> "subprocess.Popen[bytes]":
        """Until the test ends."""
        log = self._stack.enter_context((self.folder / f"{command[0]}.log").open("ab"))
        process = subprocess.Popen(
            [SCRIPTS / command[0], *command[1:]],
            env=self.environment,
            cwd=self.folder,
            stdout=log,
            stderr=log,
        )
        self._stack.callback(_end, process)
        return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class SecuredCluster:
    """A NATS server with keys and TLS, a controller, and a worker that serves a model.

    Attributes:
        first: the machine of the administrator, the server and the controller.
        second: that of the worker `mac-2`.
    """

    def __init__(self, folder: Path, stack: ExitStack, model: Path) -> None:
        self._folder, self._stack = folder, stack
        self.first, self.second = (Machine(folder / n, stack, model) for n in ("first", "second"))
        port = free_port()
        init = ("cluster", "auth", "init", "--host", "127.0.0.1", "--port", port, "--json")
        self.begun = json.loads(self.first.run(*init))
        self.first.start("nats-server", "--config", self.begun["server_config"])
        wait_for(lambda: _listens(int(port)), "the server listens")

    def token(self, role: str, name: str) -> str:
        """Of a new user."""
        return self.first.run("cluster", "auth", "add", role, name).strip()

    def person(self, name: str) -> Machine:
        """Who has joined as a client."""
        machine = Machine(self._folder / name, self._stack)
        machine.run("cluster", "join", given=self.token("client", name))
        return machine

    def serve(self) -> None:
        """Start the controller and the worker; return when its model is warm."""
        self.first.run("controller", "join", given=self.token("controller", "c-1"))
        self.first.start("controller")
        self.second.run("worker", "join", given=self.token("worker", "mac-2"))
        self.second.start("worker")
        wait_for(self._is_warm, "its model is warm")

    def _is_warm(self) -> bool:
        try:
            return '"warm"' in self.first.run("cluster", "status", "--json")
        except AssertionError:  # nobody answers yet
            return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
