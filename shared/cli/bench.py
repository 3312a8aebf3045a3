"""`cluster bench`. Each benchmark is a module of `shared/cli/benches`."""

import click

from shared.cli.lazy_group import LazyGroup
from shared.cli.options import version_option

_BENCHES = {
    "agents": "Agents whose conversations grow, with and without the KV memory.",
}
_HELP = """Measure what this machine does.

Each benchmark starts a cluster of its own and ends it; a cluster that is up is not used, but
takes its share of the machine. Close everything else; on a Mac plug it in.

\b
  cluster bench agents
  cluster bench agents --model mlx-community/Qwen3-4B-4bit
"""


@click.group(cls=LazyGroup, package=f"{__package__}.benches", summaries=_BENCHES, help=_HELP)
@version_option("cluster bench")
def command() -> None:
    pass
