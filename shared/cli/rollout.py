"""`cluster rollout`."""

import getpass
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console

from shared.cli.options import (
    json_option,
    not_empty,
    reports_errors,
    settings_options,
    version_option,
)
from shared.cli.progress import LoadDisplay
from shared.cli.rollout_orders import follow, plan_of, settings_of
from shared.cli.session import with_cluster
from shared.cli.views.figures import printable
from shared.cli.views.rollout import history_table, plan_lines, rollout_lines
from shared.client import Cluster
from shared.errors import RequestError
from shared.ids import WorkerId
from shared.messages.rollout import (
    ApplyRollout,
    PauseRollout,
    ResumeRollout,
    RollBack,
    RolloutOrder,
    RolloutReply,
    RolloutState,
    ShowRollout,
)
from shared.settings.load import DEFAULT_FILE, read_text
from shared.settings.rolled_out import ignored
from shared.settings.yaml_file import YamlFile

_HELP = """Bring a new cluster.yaml to all workers, step by step.

First some workers run it (canaries), then more; each step is watched and compared with what was
before. Whatever is worse goes back by itself. Meanwhile high priority goes to the others. The
controllers follow when all workers have it.

\b
  cluster rollout plan config/cluster.yaml     what it would change, and what that takes
  cluster rollout apply config/cluster.yaml
  cluster rollout status
  cluster rollout pause                        until: cluster rollout resume
  cluster rollout rollback                     also of one that is done
  cluster rollout history
"""


@click.group(help=_HELP)
@version_option("cluster rollout")
def command() -> None:
    pass


def _common(function: Callable[..., None]) -> Callable[..., None]:
    return settings_options(json_option(reports_errors(function)))


def _file_argument(function: Callable[..., None]) -> Callable[..., None]:
    return click.argument(
        "file", type=click.Path(path_type=Path, dir_okay=False), default=DEFAULT_FILE
    )(function)


@command.command("plan")
@_file_argument
@_common
def plan(
    file: Path, config: Path | None, nats: str | None, token: str | None, as_json: bool
) -> None:
    """Show what a file would change, and what that takes."""
    text = _read(file)
    outcome = with_cluster(config, nats, token, lambda cluster: plan_of(cluster, text))
    if as_json:
        click.echo(orjson.dumps({**outcome.as_json(), "ignored": _ignored(text)}).decode())
    else:
        _show(plan_lines(outcome, _ignored(text)))
    if outcome.problems:
        raise RequestError("; ".join(printable(problem) for problem in outcome.problems))


@command.command("apply")
@_file_argument
@click.option(
    "--canary", "canaries", multiple=True, callback=not_empty, metavar="WORKER",
    help="Begin with this one. Default: controller.rollout.canary of them.",
)  # fmt: skip
@click.option("--steps", metavar="PERCENT,...", help="Shares of the workers, such as 25,50,100.")
@click.option(
    "--bake", type=click.FloatRange(0, 86_400), metavar="SECONDS", help="How long each is watched."
)
@click.option(
    "--baseline", type=click.FloatRange(0, 86_400), metavar="SECONDS",
    help="How long it is measured what was before.",
)  # fmt: skip
@click.option("--note", default="", help="What this is for; stands in the history.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until it has ended.")
@_common
def apply(
    file: Path,
    canaries: Sequence[str],
    steps: str | None,
    bake: float | None,
    baseline: float | None,
    note: str,
    yes: bool,
    wait: bool,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Roll a file out."""
    text = _read(file)
    own = read_text(text, str(file)).controller.rollout
    settings = settings_of(own, steps=steps, bake_s=bake, baseline_s=baseline)
    if not as_json and not yes and sys.stdin.isatty():
        _show(
            plan_lines(
                with_cluster(config, nats, token, lambda cluster: plan_of(cluster, text)),
                _ignored(text),
            )
        )
        click.confirm("Roll it out?", abort=True)
    order = ApplyRollout(
        text=text,
        by=getpass.getuser(),
        note=note,
        canaries=[WorkerId(name) for name in canaries],
        settings=settings,
    )
    _order(order, config, nats, token, as_json=as_json, wait=wait)


@command.command("status")
@_common
def status(config: Path | None, nats: str | None, token: str | None, as_json: bool) -> None:
    """Show the roll-out that is under way, or the last one."""
    _tell(_ask(ShowRollout(), config, nats, token), as_json=as_json)


@command.command("pause")
@_common
def pause(config: Path | None, nats: str | None, token: str | None, as_json: bool) -> None:
    """Go no step further; what is worse still goes back."""
    _tell(_ask(PauseRollout(), config, nats, token), as_json=as_json)


@command.command("resume")
@_common
def resume(config: Path | None, nats: str | None, token: str | None, as_json: bool) -> None:
    """Go on."""
    _tell(_ask(ResumeRollout(), config, nats, token), as_json=as_json)


@command.command("rollback")
@click.option("--to", type=click.IntRange(0), metavar="VERSION", help="0: each machine's own file.")
@click.option("--note", default="", help="Why; stands in the history.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until it has ended.")
@_common
def rollback(
    to: int | None,
    note: str,
    wait: bool,
    config: Path | None,
    nats: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Go back: from the roll-out under way, or to the version before the last one."""
    order = RollBack(version=to, by=getpass.getuser(), note=note)
    _order(order, config, nats, token, as_json=as_json, wait=wait)


@command.command("history")
@_common
def history(config: Path | None, nats: str | None, token: str | None, as_json: bool) -> None:
    """List the roll-outs, the newest first."""
    state = _state(_ask(ShowRollout(), config, nats, token))
    every = [one for one in (state.rollout, *state.history) if one is not None]
    if as_json:
        click.echo(orjson.dumps({"rollouts": [one.model_dump() for one in every]}).decode())
        return
    console = Console(highlight=False)
    for line in history_table(every, console.width):
        console.print(line, soft_wrap=True)


@command.command("show")
@click.argument("version", type=click.IntRange(1))
@_common
def show(
    version: int, config: Path | None, nats: str | None, token: str | None, as_json: bool
) -> None:
    """Print a version's text."""
    found = _ask(ShowRollout(version=version), config, nats, token).version
    assert found is not None
    if as_json:
        click.echo(orjson.dumps(found.model_dump()).decode())
    else:
        click.echo(found.text, nl=not found.text.endswith("\n"))


def _read(file: Path) -> str:
    """Raises SettingsError, with the line, where the file is no good: it goes nowhere then."""
    text = YamlFile(file).text
    read_text(text, str(file))
    return text


def _ignored(text: str) -> list[str]:
    return ignored(YamlFile("cluster.yaml", text).values)


def _ask(
    order: RolloutOrder, config: Path | None, nats: str | None, token: str | None
) -> RolloutReply:
    return with_cluster(config, nats, token, lambda cluster: cluster.rollout(order))


def _order(
    order: ApplyRollout | RollBack,
    config: Path | None,
    nats: str | None,
    token: str | None,
    *,
    as_json: bool,
    wait: bool,
) -> None:
    """Give it, and follow how that goes."""

    async def work(cluster: Cluster) -> RolloutReply:
        reply = await cluster.rollout(order)
        if not wait:
            return reply
        with LoadDisplay(quiet=as_json) as display:
            return await follow(cluster, _state(reply), display)

    try:
        reply = with_cluster(config, nats, token, work)
    except KeyboardInterrupt:
        click.echo("It goes on; `cluster rollout rollback` takes it back.", err=True)
        sys.exit(130)
    _tell(reply, as_json=as_json)
    rollout = _state(reply).rollout
    assert rollout is not None
    ordered = isinstance(order, RollBack)
    if rollout.phase == "rolled_back" and not ordered:
        raise RequestError(printable(f"it was rolled back: {rollout.reason}"), code="settings")


def _tell(reply: RolloutReply, *, as_json: bool) -> None:
    state = _state(reply)
    if as_json:
        told: dict[str, Any] = state.model_dump(exclude={"history", "protocol"})
        click.echo(orjson.dumps(told).decode())
    else:
        _show(rollout_lines(state, time.time()))


def _state(reply: RolloutReply) -> RolloutState:
    assert reply.state is not None
    return reply.state


def _show(lines: Sequence[Any]) -> None:
    console = Console(highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)
