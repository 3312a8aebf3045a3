"""deploy/README.md, word for word: three machines, each a home of its own, with keys and TLS.

What is different: names are addresses, as all machines are this one; instead of `service install`,
which needs launchd or systemd, `service run` runs the same; cloning and setting up is done already.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click
import pytest

from controller.gateway.main import main as gateway
from controller.main import main as controller
from shared.cli.main import main as cluster
from tests.deploy.guide import PAGE, typed
from tests.machines import Machine
from tests.processes import free_port, wait_for
from worker.main import main as worker

_PROGRAMS: dict[str, click.Command] = {
    "cluster": cluster,
    "worker": worker,
    "controller": controller,
    "gateway": gateway,
}
_NOT_INSTALLED = "cluster service install "


class Newcomer:
    """Types lines at a machine."""

    def __init__(self, machine: Machine, port: str) -> None:
        self._machine = machine
        self._port = port

    def type(self, line: str, given: str = "") -> str:
        """What is said; services are started in the background."""
        line = line.replace("--host mac-1.local", f"--host 127.0.0.1 --port {self._port}")
        if line.startswith(_NOT_INSTALLED):
            self._machine.start("cluster", "service", "run", *line.split()[3:])
            return ""
        return self._machine.shell(line, given=given)


@pytest.fixture
def machines(tmp_path: Path, tiny_model: Path) -> Iterator[list[Machine]]:
    with ExitStack() as stack:
        yield [Machine(tmp_path / f"mac-{number}", stack, tiny_model) for number in (1, 2, 3)]


def test_from_nothing_to_three_macs(machines: list[Machine]) -> None:
    first, second, third = (Newcomer(machine, free_port()) for machine in machines)
    tokens = []
    for line in typed("On mac-1"):
        said = first.type(line)
        if "auth add worker mac-" in line and "|" not in line:
            tokens.append(said.strip())
    assert len(tokens) == 2
    for newcomer, token in zip((second, third), tokens, strict=True):
        for line in typed("On mac-2 and mac-3"):
            newcomer.type(line, given=token if line == "worker join" else "")
    look, ask, *more = typed("On mac-1, to see it")
    machine = machines[0]
    try:
        wait_for(lambda: _serve(machine) == 3, "three workers serve")
    except AssertionError:
        raise AssertionError(machine.log("cluster")) from None
    assert {"mac-1", "mac-2", "mac-3"} <= set(first.type(look).split())
    assert first.type(ask)
    for line in more:
        first.type(line.replace("--host 0.0.0.0", "--host 0.0.0.0 --port 0"))
    wait_for(lambda: "gateway is ready" in machine.log("cluster"), "the gateway", limit_s=30)


def _serve(machine: Machine) -> int:
    """How many workers have their model loaded."""
    try:
        told = json.loads(machine.run("cluster", "status", "--json"))
    except AssertionError:  # nobody answers yet
        return 0
    return sum(
        any(model["state"] == "warm" for model in worker["models"]) for worker in told["workers"]
    )


def test_every_command_of_the_page_is_one() -> None:
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
             for line in block.splitlines()]  # fmt: skip
    ours = [
        part
        for line in [*lines, *re.findall(r"`((?:cluster|worker|gateway) [^`]+)`", PAGE.read_text())]
        for part in line.partition("  #")[0].split("|")
        if part.split()[:1] in (["cluster"], ["worker"], ["controller"], ["gateway"])
    ]
    assert len(ours) > 40
    for line in ours:
        program, *words = line.split()
        _known(_PROGRAMS[program], words, line)


def _known(command: click.Command, words: list[str], line: str) -> None:
    """Follow a command line through its subcommands to its flags."""
    context = click.Context(command)
    while isinstance(command, click.Group) and words:
        if words[0].startswith("--"):
            known = {flag: each for each in command.get_params(context) for flag in each.opts}
            assert words[0] in known, line
            option = known[words[0]]
            alone = isinstance(option, click.Option) and option.is_flag
            words = words[1 if alone else 2 :]
            continue
        found = command.get_command(context, words[0])
        assert found is not None, line
        command, words = found, words[1:]
    flags = {flag for parameter in command.get_params(context) for flag in parameter.opts}
    for word in words[: words.index("--") if "--" in words else None]:
        assert not word.startswith("--") or word.partition("=")[0] in flags, line


def test_links_lead_somewhere() -> None:
    text = PAGE.read_text()
    headings = {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        assert not path or (PAGE.parent / path).exists(), target
        assert path or anchor in headings, target


def test_shell_lines_are_sound() -> None:
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL):
        subprocess.run(["bash", "-n", "-c", block], check=True)
