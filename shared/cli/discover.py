"""`cluster discover`."""

import asyncio
import dataclasses

import click
import orjson

from shared.cli.options import json_option, reports_errors
from shared.discovery.announcement import Announcement
from shared.discovery.finder import finding
from shared.discovery.selection import line_of


@click.command("discover")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 600),
    default=2.0,
    show_default=True,
    help="How long to listen.",
)
@click.option(
    "--interface", "interfaces", multiple=True, metavar="ADDRESS",
    help="Only on the network of this address of this machine.",
)  # fmt: skip
@json_option
@reports_errors
def command(seconds: float, interfaces: tuple[str, ...], as_json: bool) -> None:
    """List the clusters that announce themselves on this network.

    Anybody may announce anything: it says where to ask, not whom to trust. `open` ones take
    everybody, `token` and `keys` ones who was given one.
    """
    found = asyncio.run(_listen(seconds, interfaces))
    if as_json:
        click.echo(orjson.dumps({"clusters": [dataclasses.asdict(one) for one in found]}).decode())
        return
    for one in found:
        click.echo(line_of(one))
    if not found:
        click.echo(
            "No cluster announces itself here. Does its NATS server listen for other machines, and "
            "is multicast DNS (UDP port 5353) let through?",
            err=True,
        )


async def _listen(seconds: float, interfaces: tuple[str, ...]) -> list[Announcement]:
    async with finding(interfaces) as finder:
        await asyncio.sleep(seconds)
        return finder.clusters
