"""A routing decision: the selected worker, the other candidates, and the ineligible workers."""

from rich.text import Text

from shared.cli.views import formatting
from shared.cli.views.fitted_table import Column, flow, table, wrap
from shared.messages.routes import Route, RouteCandidate
from shared.terminal_text import printable


def route_lines(route: Route, width: int) -> list[Text]:
    """Return lines of at most `width` columns."""
    lines = [*wrap(_title(route), width), *flow(_facts(route), width)]
    if route.candidates:
        lines += [Text(), *table(_COLUMNS, route.candidates, width)]
        if route.worker == route.candidates[0].worker:
            lines[-len(route.candidates)].stylize("bold")
    if route.out:
        lines.append(Text())
        for each in route.out:
            reason = f"{printable(each.worker)}: {printable(each.reason)}"
            lines += wrap(Text.assemble(reason, (f"  {each.code}", "dim")), width, hanging=2)
        if route.others_out:
            lines.append(Text(f"and {route.others_out} others", "dim"))
    return lines


def _title(route: Route) -> Text:
    reason = printable(route.reason)
    if route.worker is None or route.model is None:
        return Text.assemble(("no worker", "bold red"), f": {reason}")
    where = f"{printable(route.model)} on {printable(route.worker)}"
    return Text.assemble((where, "bold green"), f": {reason}")


def _facts(route: Route) -> list[Text]:
    facts = [("policy", route.policy), ("skill", route.skill), ("controller", route.controller)]
    if route.home is not None:
        facts.append(("session's last worker", route.home))
    return [Text.assemble((f"{name} ", "dim"), printable(value)) for name, value in facts]


def _milliseconds(value: float) -> Text:
    if value < 0.5:
        return Text(formatting.NO_VALUE, "dim")
    return Text(formatting.short_time(value))


def _cached(candidate: RouteCandidate) -> Text:
    if not candidate.tier:
        return Text(formatting.NO_VALUE, "dim")
    return Text(f"{candidate.kept:.0%} {candidate.tier}")


_COLUMNS: tuple[Column[RouteCandidate], ...] = (
    Column("worker", lambda each: formatting.plain_text(each.worker), min_width=8, keep_end=True),
    Column("first token", lambda each: _milliseconds(each.forecast_ms.total), right=True),
    Column("load", lambda each: _milliseconds(each.forecast_ms.load), rank=1, right=True),
    Column("wait", lambda each: _milliseconds(each.forecast_ms.wait), rank=1, right=True),
    Column("restore", lambda each: _milliseconds(each.forecast_ms.restore), rank=3, right=True),
    Column("prefill", lambda each: _milliseconds(each.forecast_ms.prefill), rank=1, right=True),
    Column("step", lambda each: _milliseconds(each.forecast_ms.step), rank=3, right=True),
    Column("cached", _cached, rank=2),
    Column("requests", lambda each: Text(str(each.requests)), rank=2, right=True),
    Column("slots", lambda each: Text(f"{each.load:.0%}"), rank=2, right=True),
    Column("model", lambda each: formatting.state_text(each.state), rank=2),
)
