"""Every command of ours on our pages has options and subcommands that exist."""

import importlib.util
import re

import click
import pytest

from controller.gateway.main import main as gateway
from controller.main import main as controller
from shared.cli.main import main as cluster
from tests.docs.blocks import ROOT, CodeBlock, code_blocks, commands
from worker.main import main as worker

PROGRAMS: dict[str, click.Command] = {
    "cluster": cluster, "controller": controller, "gateway": gateway, "worker": worker,
}  # fmt: skip
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
BLOCKS = [block for block in code_blocks() if block.language == "sh"]


def problem(words: list[str]) -> str | None:
    """Why a command cannot be typed so; None where it can, or is not ours."""
    program, arguments = words[0].removeprefix(".venv/bin/"), words[1:]
    if program in PROGRAMS:
        return _refusal(PROGRAMS[program], program, arguments)
    if program == "make":
        targets = {word for word in arguments if "=" not in word}
        unknown = {one for one in targets - TARGETS if not one.startswith("bench-")}
        return f"make has no {unknown}" if unknown else None
    if words[:2] == ["python", "-m"] or (program == "python" and arguments[:1] == ["-m"]):
        module = arguments[1]
        return None if importlib.util.find_spec(module) else f"there is no module {module}"
    return None


def _refusal(command: click.Command, name: str, arguments: list[str]) -> str | None:
    context = click.Context(command, info_name=name)
    try:
        _, rest, _ = command.make_parser(context).parse_args(list(arguments))
    except click.UsageError as error:
        return error.format_message()
    if not isinstance(command, click.Group) or not rest:
        return None
    found = command.get_command(context, rest[0])
    return f"{name} has no {rest[0]}" if found is None else _refusal(found, rest[0], rest[1:])


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_each_command_parses(block: CodeBlock) -> None:
    problems = {" ".join(words): problem(words) for words in commands(block.code)}
    assert {command: why for command, why in problems.items() if why} == {}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("cluster stauts", "has no stauts"),
        ("cluster run --loud hello", "--loud"),
        ("cluster status | worker --fast", "--fast"),
        ("make coffee", "coffee"),
        ("python -m benchmarks.nothing", "nothing"),
    ],
)
def test_a_wrong_command_is_found(command: str, words: str) -> None:
    assert words in " ".join(problem(one) or "" for one in commands(command))
