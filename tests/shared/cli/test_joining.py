"""From a token to a cluster, as people type it: three roles with keys and TLS, and an answer."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shared.access.membership import read_token
from tests.processes import SCRIPTS, free_port, wait_for


class Machine:
    """A home of its own, in which commands run."""

    def __init__(self, folder: Path, stack: ExitStack, model: Path | None = None) -> None:
        folder.mkdir()
        self._stack = stack
        self._environment = {
            **os.environ,
            "HOME": str(folder),
            "XDG_DATA_HOME": str(folder / "data"),
            "CLUSTER__WORKER__KV_CACHE__DISK_MB": "0",
        }
        if model is not None:
            self._environment["CLUSTER__SKILLS"] = json.dumps({"chat": [str(model)]})
        self._folder = folder

    def run(self, *command: str, given: str = "", fails: bool = False) -> str:
        """What it says; on stderr where it fails."""
        done = subprocess.run(
            [SCRIPTS / command[0], *command[1:]],
            env=self._environment,
            cwd=self._folder,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    def start(self, *command: str) -> None:
        """Until the test ends."""
        log = self._stack.enter_context((self._folder / f"{command[0]}.log").open("wb"))
        process = subprocess.Popen(
            [SCRIPTS / command[0], *command[1:]],
            env=self._environment,
            cwd=self._folder,
            stdout=log,
            stderr=log,
        )
        self._stack.callback(_end, process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_from_nothing_to_an_answer_with_keys_and_tls(
    tmp_path: Path, stack: ExitStack, tiny_model: Path
) -> None:
    first, second = (Machine(tmp_path / name, stack, tiny_model) for name in ("first", "second"))
    ada = Machine(tmp_path / "ada", stack)
    port = free_port()
    init = ("cluster", "auth", "init", "--host", "127.0.0.1", "--port", port, "--json")
    first.start("nats-server", "--config", json.loads(first.run(*init))["server_config"])
    wait_for(lambda: _listens(int(port)), "the server listens")

    def token(role: str, name: str) -> str:
        return first.run("cluster", "auth", "add", role, name)

    assert "as controller c-1" in first.run("controller", "join", given=token("controller", "c-1"))
    first.start("controller")
    told = json.loads(second.run("worker", "join", "--json", given=token("worker", "mac-2")))
    assert told["reached"] and told["name"] == "mac-2" and "seed" not in told
    wrong = second.run("worker", "join", token("client", "eve"), fails=True)
    assert "`cluster join` takes it" in wrong
    second.start("worker")
    ada.run("cluster", "join", token("client", "ada"))
    wait_for(lambda: '"warm"' in ada.run("cluster", "status", "--json"), "its model is warm")

    assert ada.run("cluster", "run", "--max-tokens", "4", "Hello").strip()
    assert "does not permit" in ada.run("cluster", "drain", "mac-2", fails=True)
    assert "does not permit" in ada.run("cluster", "logs", "--no-follow", fails=True)
    assert "accepted" in first.run("cluster", "logs", "--no-follow")
    ada.run("cluster", "leave")
    assert "joined no cluster" in ada.run("cluster", "leave", fails=True)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_what_is_no_token_is_refused_and_changes_nothing(tmp_path: Path, stack: ExitStack) -> None:
    machine = Machine(tmp_path / "m", stack)
    assert "this is no token" in machine.run("worker", "join", "abc", fails=True)
    assert "this is no token" in machine.run("worker", "join", given="", fails=True)
    assert "not whole" in machine.run("worker", "join", "mlx1.abcd", fails=True)
    assert "joined no cluster" in machine.run("worker", "leave", fails=True)


def test_who_cannot_reach_the_cluster_yet_has_joined(tmp_path: Path, stack: ExitStack) -> None:
    first, second = Machine(tmp_path / "a", stack), Machine(tmp_path / "b", stack)
    first.run("cluster", "auth", "init", "--host", "127.0.0.1", "--port", free_port())
    token = first.run("cluster", "auth", "add", "worker", "w")
    told = json.loads(second.run("worker", "join", "-", "--json", given=token))
    assert told == {
        "role": "worker", "name": "w", "servers": read_token(token).servers, "reached": False
    }  # fmt: skip
