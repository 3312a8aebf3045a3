"""A decision of the routing: who was chosen, who else could have been, and who was out."""

from rich.text import Text

from shared.cli.views import figures
from shared.cli.views.fitted_table import Column, flowed, table, wrapped
from shared.messages.routes import Route, RouteCandidate


def route_lines(route: Route, width: int) -> list[Text]:
    """The lines, none longer than `width`."""
    lines = [*wrapped(_title(route), width), *flowed(_facts(route), width)]
    if route.candidates:
        lines += [Text(), *table(_COLUMNS, route.candidates, width)]
        if route.worker == route.candidates[0].worker:
            lines[-len(route.candidates)].stylize("bold")
    if route.out:
        lines.append(Text())
        for each in route.out:
            words = f"{figures.printable(each.worker)}: {figures.printable(each.reason)}"
            lines += wrapped(Text.assemble(words, (f"  {each.code}", "dim")), width, hanging=2)
        if route.others_out:
            lines.append(Text(f"and {route.others_out} others", "dim"))
    return lines


def _title(route: Route) -> Text:
    reason = figures.printable(route.reason)
    if route.worker is None or route.model is None:
        return Text.assemble(("nobody", "bold red"), f": {reason}")
    where = f"{figures.printable(route.model)} on {figures.printable(route.worker)}"
    return Text.assemble((where, "bold green"), f": {reason}")


def _facts(route: Route) -> list[Text]:
    facts = [("policy", route.policy), ("skill", route.skill), ("controller", route.controller)]
    if route.home is not None:
        facts.append(("session at home on", route.home))
    return [Text.assemble((f"{name} ", "dim"), figures.printable(value)) for name, value in facts]


def _milliseconds(value: float) -> Text:
    if value < 0.5:
        return Text(figures.NOTHING, "dim")
    return Text(figures.short_time(value))


def _kept(candidate: RouteCandidate) -> Text:
    if not candidate.tier:
        return Text(figures.NOTHING, "dim")
    return Text(f"{candidate.kept:.0%} {candidate.tier}")


_COLUMNS: tuple[Column[RouteCandidate], ...] = (
    Column("worker", lambda each: figures.words(each.worker), least=8, keep_end=True),
    Column("first token", lambda each: _milliseconds(each.forecast_ms.total), right=True),
    Column("load", lambda each: _milliseconds(each.forecast_ms.load), rank=1, right=True),
    Column("wait", lambda each: _milliseconds(each.forecast_ms.wait), rank=1, right=True),
    Column("restore", lambda each: _milliseconds(each.forecast_ms.restore), rank=3, right=True),
    Column("prefill", lambda each: _milliseconds(each.forecast_ms.prefill), rank=1, right=True),
    Column("step", lambda each: _milliseconds(each.forecast_ms.step), rank=3, right=True),
    Column("kept", _kept, rank=2),
    Column("requests", lambda each: Text(str(each.requests)), rank=2, right=True),
    Column("places", lambda each: Text(f"{each.load:.0%}"), rank=2, right=True),
    Column("model", lambda each: figures.state(each.state), rank=2),
)
