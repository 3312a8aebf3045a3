"""`cluster discover`."""

import asyncio
import dataclasses

import click
import orjson

from shared.cli.options import json_option, prints_errors
from shared.cli.wait_notice import wait_notice
from shared.discovery.announcement import ClusterAnnouncement
from shared.discovery.discovered_clusters import discovering
from shared.discovery.selection import format_cluster
from shared.terminal_text import printable


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
    help="Listen only on the network interface with this address.",
)  # fmt: skip
@json_option
@prints_errors
def command(seconds: float, interfaces: tuple[str, ...], as_json: bool) -> None:
    """List the clusters that are announced on this network (multicast DNS).

    Announcements are not authenticated: they say where a cluster is, not whether to trust it. An
    `open` cluster accepts everybody; `token` and `keys` clusters require a token or a key.
    """
    found = asyncio.run(_listen(seconds, interfaces))
    if as_json:
        click.echo(
            orjson.dumps({"clusters": [dataclasses.asdict(cluster) for cluster in found]}).decode()
        )
        return
    for cluster in found:
        click.echo(printable(format_cluster(cluster)))
    if not found:
        click.echo(
            "No cluster is announced here. Does its NATS server listen for other machines "
            "(`cluster up --listen 0.0.0.0`)? Does the network pass multicast DNS (UDP port 5353)?",
            err=True,
        )


async def _listen(seconds: float, interfaces: tuple[str, ...]) -> list[ClusterAnnouncement]:
    async with discovering(interfaces) as finder, wait_notice(f"Listening for {seconds:g} s ..."):
        await asyncio.sleep(seconds)
        return finder.clusters
