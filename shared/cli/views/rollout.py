"""Lines about roll-outs."""

from collections.abc import Sequence
from typing import Any

import orjson
from rich.text import Text

from shared.cli.rollout_orders import RolloutPlan
from shared.cli.views import formatting
from shared.cli.views.fitted_table import Column, table
from shared.messages.control import SettingChange
from shared.messages.rollout import Rollout, RolloutState
from shared.terminal_text import printable

_EFFECTS = {
    "live": "changes at once",
    "models": "changes after new models are loaded",
    "restart": "restarts, after its requests have finished or migrated",
    None: "nothing changes",
}
_PHASES = {
    "measuring": ("measures the baseline", "cyan"),
    "applying": ("is applied to workers", "cyan"),
    "baking": ("is watched", "cyan"),
    "rolling_back": ("rolling back", "yellow"),
    "done": ("done", "green"),
    "rolled_back": ("rolled back", "red"),
}
_LONGEST_VALUE = 60


def plan_lines(plan: RolloutPlan, ignored: Sequence[str]) -> list[Text]:
    """Return the changed settings, each once with its workers; then the effect on each process."""
    lines: list[Text] = []
    changed: dict[str, list[str]] = {}
    for worker, (_, changes) in plan.workers.items():
        for change in changes:
            changed.setdefault(_change(change), []).append(str(worker))
    for change in plan.controller_changes:
        changed.setdefault(_change(change), [])
    for line, workers in changed.items():
        some = 0 < len(workers) < len(plan.workers)
        lines.append(Text(line + (f"   ({', '.join(workers)})" if some else "")))
    if not lines:
        lines.append(Text("Nothing changes.", "dim"))
    lines.append(Text())
    for worker, (effect, _) in plan.workers.items():
        lines.append(Text.assemble((printable(worker), "bold"), f"  {_EFFECTS[effect]}"))
    effect_text = _EFFECTS[plan.controllers]
    if plan.controllers == "restart":
        effect_text = "some settings change only after a restart"
    lines.append(Text.assemble(("controllers", "bold"), f"  {effect_text}"))
    if ignored:
        names = ", ".join(ignored)
        lines.append(Text(f"Not rolled out, each machine has its own: {names}", "dim"))
    lines += [Text(printable(problem), "red") for problem in plan.problems]
    return lines


def rollout_lines(state: RolloutState, now: float) -> list[Text]:
    """Return lines about the current roll-out, or the last one."""
    stable = f"version {state.stable}" if state.stable else "each machine's own file"
    lines = [Text(f"All workers run {stable}.")]
    rollout = state.rollout
    if rollout is None:
        return lines
    if not rollout.ended:
        lines = [Text(f"The other workers run {stable}.")]
    phase, style = _PHASES[rollout.phase]
    if rollout.paused and not rollout.ended:
        phase, style = f"{phase}, paused", "yellow"
    head = Text.assemble(
        (_version(rollout.version), "bold"), "  ", (phase, style),
        f"  for {formatting.duration(max(0.0, now - rollout.since))}",
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
    """Return a header line, then a line for each roll-out."""
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
    Column("version", lambda one: formatting.plain_text(str(one.version), "bold"), right=True),
    Column("before", lambda one: formatting.plain_text(str(one.before)), right=True, rank=2),
    Column("began", lambda one: formatting.plain_text(formatting.local_time(one.began_at)), rank=1),
    Column("by", lambda one: formatting.plain_text(printable(one.by)), rank=3),
    Column("", lambda one: Text(*_PHASES[one.phase])),
    Column(
        "note", lambda one: formatting.plain_text(printable(one.reason or one.note)), min_width=10
    ),
)
