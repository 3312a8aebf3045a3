"""`python -m tests.faults`: a cluster of its own under load and faults, judged."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "2")

import click
import uvloop
from rich.console import Console
from rich.table import Table

from shared.client import connect
from tests.faults.campaign import Campaign, Plan
from tests.faults.faults import BY_NAME, FAULTS, LAME_DUCK
from tests.faults.fleet import QUICK, QUICK_PACE, Fleet
from tests.faults.judge import excerpt
from tests.faults.known import LARGE, SMALL, learn, learn_elsewhere
from tests.faults.logs import explained
from tests.faults.picture import drawn
from tests.faults.plants import PLANTS
from tests.faults.report import Report, summary

_KEPT = 2
"""Streams of each kind, and of each broken promise, that are saved."""


@click.command()
@click.option("--seconds", type=float, default=60.0, show_default=True, help="How long.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of all that is drawn.")
@click.option(
    "--fault",
    "names",
    multiple=True,
    type=click.Choice(sorted(BY_NAME)),
    help="Only these kinds; may be given several times.",
)
@click.option(
    "--pause",
    nargs=2,
    type=float,
    default=(1.0, 6.0),
    show_default=True,
    help="Seconds between two faults, at least and at most.",
)
@click.option("--workers", type=click.IntRange(2), default=3, show_default=True)
@click.option("--controllers", type=click.IntRange(1), default=2, show_default=True)
@click.option(
    "--servers",
    type=click.Choice(["1", "3"]),
    default="1",
    show_default=True,
    help="NATS servers; three are a cluster.",
)
@click.option(
    "--users", nargs=3, type=click.IntRange(0), default=(6, 4, 3), show_default=True,
    help="How many use the Python client, write by hand, and hold conversations.",
)  # fmt: skip
@click.option("--plant", type=click.Choice(sorted(PLANTS)), help="A bug that must be found.")
@click.option("--folder", type=click.Path(path_type=Path), help="For logs; kept.")
@click.option(
    "--picture", type=click.Path(path_type=Path, dir_okay=False),
    help="Where to draw it as SVG: who was in trouble when, and how long streams stood still.",
)  # fmt: skip
@click.option(
    "--once",
    is_flag=True,
    help="Each kind of fault once; --seconds is the limit then.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="A cluster that notices silence sooner, and faults that last shorter, as in `make test`.",
)
@click.option(
    "--evidence",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to save what shows the violations, to be judged again (compressed JSON).",
)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON on stdout.")
def main(
    seconds: float, seed: int, names: tuple[str, ...], pause: tuple[float, float], workers: int,
    controllers: int, servers: str, users: tuple[int, int, int], plant: str | None,
    folder: Path | None, picture: Path | None, once: bool, quick: bool, evidence: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Run a cluster of real processes under load, have random faults happen to it, and check that
    every promise of docs/wire.md was kept. Exit status 1: one was not.

    The same seed draws the same faults and questions; what they hit depends on the machine.
    """
    console = Console(stderr=True, soft_wrap=True)
    faults = [BY_NAME[name] for name in names] or list(FAULTS)
    if servers == "1":
        faults = [fault for fault in faults if fault is not LAME_DUCK]
    pace = QUICK_PACE if quick else 1.0
    plan = Plan(
        seed=seed, seconds=seconds, faults=faults, once=once, pause_s=pause, pace=pace, users=users
    )

    def say(line: str) -> None:
        console.print(line, highlight=False)

    async def work(place: Path) -> Report:
        from tests.models import make_tiny_model

        model = place / "tiny"
        if not model.exists():
            make_tiny_model(model, context_tokens=4096)
        size, settings = (SMALL, QUICK) if quick else (LARGE, None)
        fleet = Fleet(
            place,
            model,
            workers=workers,
            controllers=controllers,
            servers=int(servers),
            plants=[plant] if plant else [],
            settings=settings,
        )
        say("asking each question alone and in crowds, with nothing else going on")
        known = await learn_elsewhere(peace, model, size, seed) if plant else None
        async with fleet.running():
            if known is None:
                async with connect(fleet.settings) as cluster:
                    known = await learn(cluster, size, seed)
            bug = PLANTS[plant].planted() if plant and PLANTS[plant].where == "client" else None
            with bug or contextlib.nullcontext():
                campaign = Campaign(fleet, plan, known, say)
                report = await campaign.run()
            if evidence is not None:
                excerpt(campaign.evidence, report.violations, most=_KEPT).save(evidence)
            if report.violations:
                say(explained(report.violations, place))
            return report

    # However it is ended, its processes end with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with tempfile.TemporaryDirectory() as temporary:
        place = folder or Path(temporary)
        peace = place / "peace"
        peace.mkdir(parents=True, exist_ok=True)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report = runner.run(work(place))
    if picture is not None:
        picture.write_text(drawn(report.injections, report.stood_still, report.seconds))
        say(f"drawn to {picture}")
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        show(report, Console(soft_wrap=True))
    sys.exit(1 if report.violations else 0)


def show(report: Report, console: Console) -> None:
    """For people."""
    names = ("p50", "p95", "max")
    table = Table("fault", "times", "streams taken over by another worker (s): p50", *names[1:],
                  "heard from it: p50", *names[1:])  # fmt: skip
    for kind, times in sorted(report.faults.items()):
        row = [kind, str(times)]
        for found in (report.taken_s, report.resumed_s):
            took = summary(found.get(kind, []))
            row += [f"{took[name]:.3f}" if name in took else "" for name in names]
        table.add_row(*row)
    console.print(table)
    pauses = summary(report.pauses_s)
    console.print(
        f"{report.requests} requests, {report.tokens} tokens in {report.seconds:.0f} s; ends "
        f"{report.ends}; longest pause of a stream {pauses}; {report.figures}"
    )
    for violation in report.violations:
        console.print(f"[red]{violation}", highlight=False)
    told = "no promise was broken" if not report.violations else "promises were broken"
    console.print(f"{sum(report.faults.values())} faults, seed {report.seed}: {told}")


if __name__ == "__main__":
    main()
