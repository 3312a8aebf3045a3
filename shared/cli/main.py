"""The `cluster` command."""

import logging

import click

from shared.cli.lazy_group import LazyGroup
from shared.cli.options import version_option

_COMMANDS = {
    "up": "Start a whole cluster on this machine.",
    "run": "Send one prompt and stream the answer.",
    "chat": "Chat with a model.",
    "status": "Show workers, models and controllers.",
    "top": "Monitor workers, engines and models live.",
    "models": "List, load, unload and pin models.",
    "requests": "List and cancel requests.",
    "drain": "Shut workers down after their requests.",
    "restart": "Restart workers, together or one after another.",
    "rollout": "Roll out a new cluster.yaml to all workers in steps.",
    "sessions": "List, pin and delete stored conversations.",
    "route": "Show which worker a request would be routed to, and why.",
    "auth": "Manage users: keys, certificates and tokens.",
    "join": "Join a cluster with a token.",
    "leave": "Leave the joined cluster and delete its key.",
    "discover": "List the clusters that are announced on this network.",
    "service": "Run parts of a cluster as services of launchd or systemd.",
    "logs": "Show and follow the logs of all processes.",
    "bench": "Run benchmarks on this machine.",
}
_HELP = """Use and operate a cluster of machines that serve MLX models.

\b
  cluster up                                   start a cluster on this machine
  cluster run "What is the capital of France?"
  cluster chat
  cluster status                               what runs, and whether it is ready
  cluster top                                  the same, live

Commands connect to the NATS server of --nats, else to nats.servers of the settings file, else to
the cluster that this machine joined (`cluster join`), else to nats://127.0.0.1:4222.

\b
  cluster COMMAND --help                       options and examples of a command
"""


@click.group(cls=LazyGroup, package=__package__ or "", summaries=_COMMANDS, help=_HELP)
@version_option("cluster")
def main() -> None:
    # Commands print errors themselves. Warnings that libraries log are for services.
    logging.getLogger().addHandler(logging.NullHandler())
