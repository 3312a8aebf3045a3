"""A mistyped command: the nearest one is named."""

from importlib import import_module

import click
import pytest
from click.testing import CliRunner


@pytest.mark.parametrize(
    ("module", "command", "arguments", "message"),
    [
        ("shared.cli.main", "main", ["stauts"], "'status'"),
        ("shared.cli.main", "main", ["quit"], "No such command 'quit'."),
        ("shared.cli.main", "main", ["models", "laod"], "'load'"),
        ("shared.cli.main", "main", ["rollout", "aply"], "Did you mean 'apply'?"),
        ("controller.main", "main", ["jion"], "Did you mean 'join'?"),
        ("worker.main", "main", ["leaf"], "Did you mean 'leave'?"),
        ("controller.gateway.main", "main", ["kyes"], "Did you mean 'keys'?"),
        ("controller.gateway.main", "main", ["keys", "lst"], "Did you mean 'list'?"),
    ],
)
def test_a_mistyped_command(module: str, command: str, arguments: list[str], message: str) -> None:
    group = getattr(import_module(module), command)
    assert isinstance(group, click.Group)
    done = CliRunner().invoke(group, arguments)
    assert done.exit_code == 2
    assert message in done.output
