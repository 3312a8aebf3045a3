"""`python -m tests.fuzz`: hostile bytes against a cluster of its own, judged."""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click
import uvloop
from rich.console import Console

from tests.fuzz.campaign import FuzzCampaign, as_json
from tests.fuzz.target import target

_SHOWN = 20


@click.command()
@click.option("--seconds", type=float, default=120.0, show_default=True, help="How long.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of all that is drawn.")
@click.option(
    "--open", "is_open", is_flag=True,
    help="A cluster without keys, as of `cluster up`; default: TLS, and a key for everybody.",
)  # fmt: skip
@click.option(
    "--spare-s", type=float, default=1.0, show_default=True,
    help="Seconds that the other client's request may take longer than alone.",
)  # fmt: skip
@click.option("--json", "wants_json", is_flag=True, help="The report as JSON on stdout.")
def main(seconds: float, seed: int, is_open: bool, spare_s: float, wants_json: bool) -> None:
    """Send a running cluster what a client with an ordinary key can send, mutated, from bare
    sockets. After each burst another client's small request must be served; no process may end or
    lose its connection. Exit status 1: a promise was broken.

    The same seed draws the same bytes; what they meet depends on the machine.
    """
    from tests.models import make_tiny_model

    console = Console(stderr=True, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="mlx-fuzz-") as place:
        model = make_tiny_model(Path(place) / "tiny", context_tokens=4096)
        with target(Path(place), model, secured=not is_open) as attacked:
            campaign = FuzzCampaign(
                attacked, seed, lambda line: console.print(line, markup=False), spare_s=spare_s
            )
            report = uvloop.run(campaign.run(seconds))
    if wants_json:
        click.echo(as_json(report))
    else:
        _show(console, report.violations)
        for way, alone_s in report.limits.alone_s.items():
            slowest = report.slowest_s[way]
            console.print(
                f"over {way}: alone {alone_s * 1000:.0f} ms, slowest {slowest * 1000:.0f} ms"
            )
        for name, memory_mib in report.memory_mib.items():
            over_time = " ".join(map(str, memory_mib))
            console.print(f"{name}: {report.grown[name]:+.1%}, MiB {over_time}", markup=False)
        console.print(
            f"seed {seed}: {report.bursts} bursts, {report.sent:,} messages and requests, "
            f"{len(report.violations)} broken promises"
        )
    sys.exit(1 if report.violations else 0)


def _show(console: Console, lines: list[str]) -> None:
    for line in lines[:_SHOWN]:
        console.print(line, markup=False)
    if len(lines) > _SHOWN:
        console.print(f"... and {len(lines) - _SHOWN} more")


if __name__ == "__main__":
    main()
