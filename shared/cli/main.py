"""The `cluster` command."""

import logging

import click

from shared.cli.lazy_group import LazyGroup
from shared.cli.options import version_option

_COMMANDS = {
    "up": "Start a whole cluster on this machine.",
    "run": "Ask one question and stream the answer.",
    "chat": "Talk to a model.",
    "status": "Show controllers, workers and models.",
    "top": "Watch workers, engines and models.",
    "models": "List, load and unload models.",
    "drain": "Have workers end; their streams end first.",
    "restart": "Start workers again.",
    "rollout": "Bring a new cluster.yaml to all workers, step by step.",
    "sessions": "List, pin and remove conversations.",
    "route": "Show where a request would go, and why.",
    "auth": "Say who may take part: keys, certificates, tokens.",
    "join": "Take part in a cluster, with a token.",
    "leave": "Forget the cluster that was joined.",
    "discover": "List the clusters that announce themselves on this network.",
    "service": "Have parts of a cluster kept running here.",
    "logs": "Follow the logs of all processes.",
    "bench": "Measure what this machine does.",
}
_HELP = """Use and look after a cluster of MLX workers.

\b
  cluster up                                   everything on this machine
  cluster run "What is the capital of France?"
  cluster chat
  cluster status
  cluster top                                  the same, live
"""


@click.group(cls=LazyGroup, package=__package__ or "", summaries=_COMMANDS, help=_HELP)
@version_option("cluster")
def main() -> None:
    # Errors are shown by the commands; the libraries' own warnings are for services.
    logging.getLogger().addHandler(logging.NullHandler())
