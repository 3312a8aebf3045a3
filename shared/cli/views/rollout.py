"""Roll-outs, as people see them."""

from collections.abc import Sequence
from typing import Any

import orjson
from rich.text import Text

from shared.cli.rollout_orders import RolloutPlan
from shared.cli.views import figures
from shared.cli.views.figures import printable
from shared.cli.views.fitted_table import Column, table
from shared.messages.control import SettingChange
from shared.messages.rollout import Rollout, RolloutState

_EFFECTS = {
    "live": "at once",
    "models": "loads models first",
    "restart": "starts again, after its streams have ended or moved",
    None: "nothing changes",
}
_PHASES = {
    "measuring": ("what was before is measured", "cyan"),
    "applying": ("goes to workers", "cyan"),
    "baking": ("is watched", "cyan"),
    "rolling_back": ("goes back", "yellow"),
    "done": ("done", "green"),
    "rolled_back": ("rolled back", "red"),
}
_LONGEST_VALUE = 60


def plan_lines(plan: RolloutPlan, ignored: Sequence[str]) -> list[Text]:
    """The differences, each once with the workers that have it; then what each has to do."""
    lines: list[Text] = []
    everywhere: dict[str, list[str]] = {}
    for worker, (_, changes) in plan.workers.items():
        for change in changes:
            everywhere.setdefault(_change(change), []).append(str(worker))
    for change in plan.controller_changes:
        everywhere.setdefault(_change(change), [])
    for line, workers in everywhere.items():
        some = 0 < len(workers) < len(plan.workers)
        lines.append(Text(line + (f"   ({', '.join(workers)})" if some else "")))
    if not lines:
        lines.append(Text("Nothing changes.", "dim"))
    lines.append(Text())
    for worker, (effect, _) in plan.workers.items():
        lines.append(Text.assemble((printable(worker), "bold"), f"  {_EFFECTS[effect]}"))
    when = _EFFECTS[plan.controllers]
    if plan.controllers == "restart":
        when = "some of it when they are started again"
    lines.append(Text.assemble(("controllers", "bold"), f"  {when}"))
    if ignored:
        names = ", ".join(ignored)
        lines.append(Text(f"Left to each machine: {names}", "dim"))
    lines += [Text(printable(problem), "red") for problem in plan.problems]
    return lines


def rollout_lines(state: RolloutState, now: float) -> list[Text]:
    """The roll-out that is under way, or the last one."""
    runs = f"version {state.stable}" if state.stable else "each machine's own file"
    lines = [Text(f"All run {runs}.")]
    rollout = state.rollout
    if rollout is None:
        return lines
    if not rollout.ended:
        lines = [Text(f"Others run {runs}.")]
    words, style = _PHASES[rollout.phase]
    if rollout.paused and not rollout.ended:
        words, style = f"{words}, paused", "yellow"
    head = Text.assemble(
        (_version(rollout.version), "bold"), "  ", (words, style),
        f"  for {figures.duration(max(0.0, now - rollout.since))}",
    )  # fmt: skip
    lines.append(head)
    if rollout.reason:
        lines.append(Text(f"  {printable(rollout.reason)}", "yellow"))
    for index, step in enumerate(rollout.steps):
        lines.append(Text(f"  {_mark(rollout, index)} {', '.join(map(printable, step))}"))
    if rollout.note or rollout.by:
        lines.append(Text(f"  {printable(rollout.by)}: {printable(rollout.note)}", "dim"))
    return lines


def history_table(rollouts: Sequence[Rollout], width: int) -> list[Text]:
    """A line of titles, then one for each."""
    return table(_COLUMNS, rollouts, width)


def _mark(rollout: Rollout, index: int) -> str:
    if rollout.phase in ("rolling_back", "rolled_back", "measuring"):
        return "·"
    if rollout.phase == "done" or index < rollout.step:
        return "✓"
    return "▸" if index == rollout.step else "·"


def _version(number: int) -> str:
    return f"Version {number}" if number else "Each machine's own file"


def _change(change: SettingChange) -> str:
    return printable(f"{change.key}: {_value(change.before)} → {_value(change.after)}")


def _value(value: Any) -> str:
    text = "—" if value is None else orjson.dumps(value).decode()
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


_COLUMNS: tuple[Column[Rollout], ...] = (
    Column("version", lambda one: figures.words(str(one.version), "bold"), right=True),
    Column("before", lambda one: figures.words(str(one.before)), right=True, rank=2),
    Column("began", lambda one: figures.words(figures.moment(one.began_at)), rank=1),
    Column("by", lambda one: figures.words(printable(one.by)), rank=3),
    Column("", lambda one: Text(*_PHASES[one.phase])),
    Column("note", lambda one: figures.words(printable(one.reason or one.note)), least=10),
)
