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

from shared.cli.connection import with_cluster
from shared.cli.options import (
    json_option,
    prints_errors,
    reject_empty,
    settings_options,
    version_option,
)
from shared.cli.progress import ProgressDisplay
from shared.cli.rollout_orders import follow_rollout, plan_rollout, rollout_settings
from shared.cli.views.rollout import history_table, plan_lines, rollout_lines
from shared.cli.wait_notice import WAITING, wait_notice
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
from shared.terminal_text import for_output, printable

_HELP = """Roll out a new cluster.yaml to all workers in steps.

The first step is a few workers (canaries), later steps are larger. After each step the metrics of
its workers are compared with a baseline that was measured before. If they are worse, the roll-out
is rolled back automatically. Requests of high priority avoid workers that are on trial. The
controllers switch after all workers.

\b
  cluster rollout plan config/cluster.yaml     show what would change
  cluster rollout apply config/cluster.yaml
  cluster rollout status
  cluster rollout pause                        stop until: cluster rollout resume
  cluster rollout rollback                     also after a roll-out has finished
  cluster rollout history
"""


@click.group(help=_HELP)
@version_option("cluster rollout")
def command() -> None:
    pass


def _common(function: Callable[..., None]) -> Callable[..., None]:
    return settings_options(json_option(prints_errors(function)))


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
    """Show what FILE would change, and which processes would restart."""
    text = _read(file)
    outcome = with_cluster(config, nats, token, lambda cluster: plan_rollout(cluster, text))
    if as_json:
        click.echo(orjson.dumps({**outcome.as_json(), "ignored": _ignored(text)}).decode())
    else:
        _print_lines(plan_lines(outcome, _ignored(text)))
    if outcome.problems:
        raise RequestError("; ".join(printable(problem) for problem in outcome.problems))


@command.command("apply")
@_file_argument
@click.option(
    "--canary", "canaries", multiple=True, callback=reject_empty, metavar="WORKER",
    help="A worker of the first step. Default: as many as controller.rollout.canary says.",
)  # fmt: skip
@click.option(
    "--steps",
    metavar="PERCENT,...",
    help="Cumulative percent of the workers per step, such as 25,50,100.",
)
@click.option(
    "--bake",
    type=click.FloatRange(0, 86_400),
    metavar="SECONDS",
    help="How long to watch each step.",
)
@click.option(
    "--baseline", type=click.FloatRange(0, 86_400), metavar="SECONDS",
    help="How long to measure the baseline.",
)  # fmt: skip
@click.option("--note", default="", help="A note for the history.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait until the roll-out has ended."
)
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
    """Roll out FILE."""
    text = _read(file)
    own = read_text(text, str(file)).controller.rollout
    settings = rollout_settings(own, steps=steps, bake_s=bake, baseline_s=baseline)
    if not as_json and not yes and sys.stdin.isatty():
        _print_lines(
            plan_lines(
                with_cluster(config, nats, token, lambda cluster: plan_rollout(cluster, text)),
                _ignored(text),
            )
        )
        click.confirm("Roll out this file?", abort=True)
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
    """Show the current roll-out, or the last one."""
    _print_state(_send(ShowRollout(), config, nats, token), as_json=as_json)


@command.command("pause")
@_common
def pause(config: Path | None, nats: str | None, token: str | None, as_json: bool) -> None:
    """Pause the roll-out before its next step. Worse metrics still roll it back."""
    _print_state(_send(PauseRollout(), config, nats, token), as_json=as_json)


@command.command("resume")
@_common
def resume(config: Path | None, nats: str | None, token: str | None, as_json: bool) -> None:
    """Resume a paused roll-out."""
    _print_state(_send(ResumeRollout(), config, nats, token), as_json=as_json)


@command.command("rollback")
@click.option(
    "--to",
    type=click.IntRange(0),
    metavar="VERSION",
    help="The version to return to; 0: each machine's own file.",
)
@click.option("--note", default="", help="The reason, for the history.")
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait until the roll-out has ended."
)
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
    """Roll back the current roll-out, or return to the version before the last one."""
    order = RollBack(version=to, by=getpass.getuser(), note=note)
    _order(order, config, nats, token, as_json=as_json, wait=wait)


@command.command("history")
@_common
def history(config: Path | None, nats: str | None, token: str | None, as_json: bool) -> None:
    """List roll-outs, the newest first."""
    state = _state(_send(ShowRollout(), config, nats, token))
    rollouts = [one for one in (state.rollout, *state.history) if one is not None]
    if as_json:
        click.echo(orjson.dumps({"rollouts": [one.model_dump() for one in rollouts]}).decode())
        return
    console = Console(highlight=False)
    for line in history_table(rollouts, console.width):
        console.print(line, soft_wrap=True)


@command.command("show")
@click.argument("version", type=click.IntRange(1))
@_common
def show(
    version: int, config: Path | None, nats: str | None, token: str | None, as_json: bool
) -> None:
    """Print the text of a version."""
    found = _send(ShowRollout(version=version), config, nats, token).version
    assert found is not None
    if as_json:
        click.echo(orjson.dumps(found.model_dump()).decode())
    else:
        click.echo(for_output(found.text), nl=not found.text.endswith("\n"))


def _read(file: Path) -> str:
    """Return the text of a file.

    Raises:
        SettingsError: the settings in the file are invalid; names the line.
    """
    text = YamlFile(file).text
    read_text(text, str(file))
    return text


def _ignored(text: str) -> list[str]:
    return ignored(YamlFile("cluster.yaml", text).values)


def _send(
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
    """Send an order, and show the progress until the roll-out has ended."""

    async def work(cluster: Cluster) -> RolloutReply:
        async with wait_notice(WAITING):
            reply = await cluster.rollout(order)
        if not wait:
            return reply
        with ProgressDisplay(quiet=as_json) as display:
            return await follow_rollout(cluster, _state(reply), display)

    try:
        reply = with_cluster(config, nats, token, work, shows_progress=True)
    except KeyboardInterrupt:
        click.echo("The roll-out continues; `cluster rollout rollback` undoes it.", err=True)
        sys.exit(130)
    _print_state(reply, as_json=as_json)
    rollout = _state(reply).rollout
    assert rollout is not None
    ordered = isinstance(order, RollBack)
    if rollout.phase == "rolled_back" and not ordered:
        raise RequestError(
            printable(f"the version was rolled back: {rollout.reason}"), code="settings"
        )


def _print_state(reply: RolloutReply, *, as_json: bool) -> None:
    state = _state(reply)
    if as_json:
        fields: dict[str, Any] = state.model_dump(exclude={"history", "protocol"})
        click.echo(orjson.dumps(fields).decode())
    else:
        _print_lines(rollout_lines(state, time.time()))


def _state(reply: RolloutReply) -> RolloutState:
    assert reply.state is not None
    return reply.state


def _print_lines(lines: Sequence[Any]) -> None:
    console = Console(highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)
