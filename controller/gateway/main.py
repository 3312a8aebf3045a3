"""The `gateway` command."""

import click

from shared.cli.options import reports_errors, version_option
from shared.errors import Unavailable


@click.command(help="OpenAI- and Anthropic-compatible HTTP in front of a cluster. Not there yet.")
@version_option("gateway")
@reports_errors
def main() -> None:
    raise Unavailable(
        "the HTTP gateway is not there yet. Use the NATS subjects, the Python client or "
        "`cluster run` meanwhile: see README.md"
    )
