"""Command line options that set fields of a request."""

from typing import Any

import click

DEFAULT_SKILL = "chat"


def request_options(function: Any) -> Any:
    """Add options for the fields of a request."""
    for option in (
        click.option(
            "--no-think", is_flag=True, help="Turn reasoning off, if the model supports that."
        ),
        click.option("--seed", type=int, help="Seed of sampling, for repeatable answers."),
        click.option(
            "--max-tokens", type=int, help="Maximum tokens of the answer.  [default: 512]"
        ),
        click.option("--top-p", type=float, help="Nucleus sampling: 0 to 1.  [default: 1]"),
        click.option(
            "--temperature", type=float, help="Sampling temperature; 0 is greedy.  [default: 1]"
        ),
        click.option("--system", help="System message."),
        click.option("--model", help="A model of the skill.  [default: the first available]"),
        click.option(
            "--skill", default=DEFAULT_SKILL, show_default=True, help="A skill in cluster.yaml."
        ),
    ):
        function = option(function)
    return function


def request_fields(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the request fields of the options, except `--skill` and `--system`."""
    fields = {name: value for name, value in flags.items() if value is not None}
    if fields.pop("no_think"):
        fields["reasoning_effort"] = "none"
    return fields


def system_messages(system: str | None) -> list[dict[str, Any]]:
    """Return the first messages of a conversation."""
    return [{"role": "system", "content": system}] if system else []
