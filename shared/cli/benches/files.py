"""Files of a comparison."""

from pathlib import Path

import orjson

from shared.cli.benches import plot
from shared.cli.benches.comparison import BenchComparison


def as_json_text(comparison: BenchComparison) -> str:
    """Return the whole comparison as JSON."""
    return orjson.dumps(comparison.as_dict(), option=orjson.OPT_INDENT_2).decode()


def save(comparison: BenchComparison, folder: Path) -> list[Path]:
    """Write the results and, if matplotlib is installed, the plot; replace those of an earlier run.

    Returns:
        The written files.

    Raises:
        OSError: a file cannot be written.
    """
    results, picture = folder / "agents.json", folder / "agents.png"
    results.write_text(as_json_text(comparison) + "\n")
    picture.unlink(missing_ok=True)
    if plot.missing() is not None:
        return [results]
    plot.write_plot(comparison, picture)
    return [results, picture]
