"""The request that the flags of a command make."""

from typing import Any

import click


def request_options(function: Any) -> Any:
    """The fields of a request that people set by hand."""
    for option in (
        click.option("--no-think", is_flag=True, help="Turn thinking off, where the model can."),
        click.option("--seed", type=int, help="Makes a sampled answer repeatable."),
        click.option("--max-tokens", type=int, help="At most so many tokens.  [default: 512]"),
        click.option("--top-p", type=float, help="Nucleus sampling.  [default: 1]"),
        click.option("--temperature", type=float, help="0 for the likeliest.  [default: 1]"),
        click.option("--system", help="System message."),
        click.option("--model", help="One of the skill's models.  [default: the first available]"),
        click.option("--skill", default="chat", show_default=True, help="A skill of cluster.yaml."),
    ):
        function = option(function)
    return function


def request_fields(flags: dict[str, Any]) -> dict[str, Any]:
    """The fields that flags stand for, but for `--skill` and `--system`."""
    fields = {name: value for name, value in flags.items() if value is not None}
    if fields.pop("no_think"):
        fields["reasoning_effort"] = "none"
    return fields


def system_messages(system: str | None) -> list[dict[str, Any]]:
    """What a conversation begins with."""
    return [{"role": "system", "content": system}] if system else []
