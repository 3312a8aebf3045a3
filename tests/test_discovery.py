"""A worker that was told nothing finds its cluster: real multicast DNS, on this machine alone."""

import json
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.machines import Machine
from tests.processes import SCRIPTS, free_port, wait_for

ONLY_HERE = '["127.0.0.1"]'


class Home(Machine):
    """A machine on which nothing was said of NATS."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder, stack)
        self.environment |= {
            "CLUSTER__DISCOVERY__ENABLED": "true",
            "CLUSTER__DISCOVERY__INTERFACES": ONLY_HERE,
            "CLUSTER__SKILLS": '{"chat": ["no/model"]}',
            "CLUSTER__WORKER__PRE_WARMING__ENABLED": "false",
        }

    def said(self, name: str, text: str) -> Callable[[], bool]:
        return lambda: text in self.log(name)

    def discovered(self) -> list[dict[str, object]]:
        told = self.run("cluster", "discover", "--interface", "127.0.0.1", "--json")
        clusters: list[dict[str, object]] = json.loads(told)["clusters"]
        return clusters


@pytest.fixture
def first(tmp_path: Path, stack: ExitStack) -> Home:
    return Home(tmp_path / "first", stack)


@pytest.fixture
def mac(tmp_path: Path, stack: ExitStack) -> Home:
    home = Home(tmp_path / "mac", stack)
    if others := home.discovered():
        pytest.skip(f"another cluster announces itself to this machine: {others[0]['servers']}")
    return home


def serve(home: Home, *arguments: str, name: str, token: str | None = None) -> str:
    """A NATS server that others reach, and its controller; returns the port."""
    port = free_port()
    auth = ("--auth", token) if token else ()
    home.start("nats-server", "-a", "0.0.0.0", "-p", port, "-n", name, *auth)
    asked = ("--token", token) if token else ()
    home.start("controller", "--nats", f"nats://127.0.0.1:{port}", *asked, *arguments)
    return port


def test_a_worker_with_no_flags_finds_the_open_cluster(first: Home, mac: Home) -> None:
    mac.start("worker", "--id", "found-it")
    wait_for(mac.said("worker", "no cluster announces itself"), "it says that it waits")
    port = serve(first, name="home")
    follows = f"following the cluster home (open) at nats://127.0.0.1:{port}"
    wait_for(mac.said("worker", follows), "it follows", explain=lambda: mac.log("worker"))
    wait_for(lambda: "found-it" in status(first, port), "it is a worker of it")
    (told,) = mac.discovered()
    assert (told["cluster"], told["access"], told["servers"]) == (
        "home", "open", [f"nats://127.0.0.1:{port}"]
    )  # fmt: skip


def status(home: Home, port: str) -> str:
    return subprocess.run(
        [SCRIPTS / "cluster", "status", "--json", "--nats", f"nats://127.0.0.1:{port}"],
        cwd=home.folder, env=home.environment, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip


def test_one_that_asks_for_a_token_gets_none_and_the_person_is_told(first: Home, mac: Home) -> None:
    serve(first, name="home", token="a-secret")
    wait_for(lambda: bool(mac.discovered()), "it is announced")
    assert mac.start("worker").wait(30) == 2
    said = mac.log("worker")
    assert "asks for a token" in said and "--token TOKEN" in said and "a-secret" not in said


def test_who_is_not_to_be_found_is_not_and_who_has_gone_is_gone(first: Home, mac: Home) -> None:
    serve(first, "--no-discovery", name="quiet")
    wait_for(first.said("controller", "ready"), "the controller serves")
    assert mac.discovered() == []
    other = Home(mac.folder.parent / "other", first._stack)
    serve(other, name="loud")
    wait_for(lambda: [one["cluster"] for one in mac.discovered()] == ["loud"], "it is announced")


def test_where_nothing_is_to_be_looked_for_the_default_server_is_asked(mac: Home) -> None:
    mac.start("worker", "--no-discovery")
    wait_for(mac.said("worker", "127.0.0.1:4222"), "it tries the default")
    assert "announces" not in mac.log("worker")
