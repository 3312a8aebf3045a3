"""The plot of a comparison. The only module that uses matplotlib, which is optional."""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shared.cli.benches.comparison import BenchComparison, BenchSide, Spread
from shared.cli.views.formatting import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PAPER = "#fbfbfa"
_INK = "#33363b"
_GRID = "#d9dadd"
_WITH = "#0b6fb8"
_WITHOUT = "#c8590b"  # these two differ for colour-blind eyes, and in grey
_DOTS_PER_INCH = 160


def missing() -> str | None:
    """Return how to install matplotlib, or None if it is installed."""
    if importlib.util.find_spec("matplotlib") is not None:
        return None
    return (
        f"no plot without matplotlib; install it with: {sys.executable} -m pip install matplotlib"
    )


def write_plot(comparison: BenchComparison, path: Path) -> None:
    """Write the plot as PNG.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    load = comparison.load
    figure = Figure(figsize=(11, 5), layout="constrained", facecolor=_PAPER)
    figure.suptitle(
        f"{comparison.model} on {comparison.chip}: {count(load.agents, 'agent')}, "
        f"{load.turns} turns each",
        color=_INK,
    )
    times, tokens = figure.subplots(1, 2)
    _plot_times(times, comparison)
    _plot_tokens(tokens, comparison)
    for axes in (times, tokens):
        _finish(axes, comparison)
    figure.legend(
        *times.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        labelcolor=_INK,
    )
    figure.savefig(path, format="png", dpi=_DOTS_PER_INCH)


def _plot_times(axes: "Axes", comparison: BenchComparison) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    for side, name, colour in _sides(comparison):
        spreads = [side.turn(turn).first_token_s for turn in _turns(comparison)]
        _plot_spreads(axes, _turns(comparison), spreads, name, colour)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title("Time to first token, median and range over agents")
    axes.set_ylabel("seconds (log scale)")


def _plot_spreads(
    axes: "Axes", turns: list[int], spreads: list[Spread], name: str, colour: str
) -> None:
    lowest, highest = [each.min for each in spreads], [each.max for each in spreads]
    axes.fill_between(turns, lowest, highest, color=colour, alpha=0.15, linewidth=0)
    axes.plot(turns, [each.median for each in spreads], color=colour, marker="o", label=name)


def _plot_tokens(axes: "Axes", comparison: BenchComparison) -> None:
    width = 0.38
    for number, (side, name, colour) in enumerate(_sides(comparison)):
        counts = [side.turn(turn).computed_tokens for turn in _turns(comparison)]
        positions = [turn + (number - 0.5) * width for turn in _turns(comparison)]
        axes.bar(positions, counts, width, color=colour, label=name)
    axes.set_title("Prompt tokens prefilled, all agents together")
    axes.set_ylabel("tokens")
    axes.yaxis.set_major_formatter("{x:,.0f}")


def _finish(axes: "Axes", comparison: BenchComparison) -> None:
    """Add what both axes have: the restart, the turns, the colours."""
    from matplotlib.ticker import MaxNLocator

    if (last := comparison.load.restart_after) is not None:
        axes.axvline(last + 0.5, color=_INK, linestyle="--", linewidth=1, label="restart")
    axes.set_xlabel("turn")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_facecolor(_PAPER)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(_INK)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(_INK)


def _sides(comparison: BenchComparison) -> list[tuple[BenchSide, str, str]]:
    return [
        (comparison.without_memory, "without KV memory", _WITHOUT),
        (comparison.with_memory, "with KV memory", _WITH),
    ]


def _turns(comparison: BenchComparison) -> list[int]:
    return list(range(1, comparison.load.turns + 1))
