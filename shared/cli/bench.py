"""`cluster bench`. Each benchmark is a module in `shared/cli/benches`."""

import click

from shared.cli.lazy_group import LazyGroup
from shared.cli.options import version_option

_BENCHES = {
    "agents": "Agents with growing conversations, with and without KV memory.",
}
_HELP = """Run benchmarks on this machine.

Each benchmark starts and stops its own cluster. A cluster that already runs is not used, but makes
the results worse. Close other programs, and connect a Mac to power.

\b
  cluster bench agents
  cluster bench agents --model mlx-community/Qwen3-4B-4bit
"""


@click.group(cls=LazyGroup, package=f"{__package__}.benches", summaries=_BENCHES, help=_HELP)
@version_option("cluster bench")
def command() -> None:
    pass
