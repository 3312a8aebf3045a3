"""`cluster status`."""

from pathlib import Path

import click
from rich.console import Console

from shared.cli.connection import with_cluster
from shared.cli.options import json_option, reports_errors, settings_options, version_option
from shared.cli.views.overview import overview
from shared.codec import encode


@click.command(help="Show controllers, workers and models of a cluster.")
@settings_options
@json_option
@version_option("cluster status")
@reports_errors
def command(config: Path | None, nats: str | None, token: str | None, as_json: bool) -> None:
    health = with_cluster(config, nats, token, lambda cluster: cluster.health())
    if as_json:
        click.echo(encode(health).decode())
        return
    console = Console(highlight=False)
    for line in overview(health, console.width):
        console.print(line, soft_wrap=True)
