"""What a comparison leaves in a folder."""

from pathlib import Path

import orjson

from shared.cli.benches import plot
from shared.cli.benches.comparison import Comparison


def as_json_text(comparison: Comparison) -> str:
    """Everything, for programs."""
    return orjson.dumps(comparison.as_dict(), option=orjson.OPT_INDENT_2).decode()


def save(comparison: Comparison, folder: Path) -> list[Path]:
    """Write the figures and, where it can be drawn, the plot, in place of those of an earlier run.

    Returns:
        What was written.

    Raises:
        OSError: it cannot be written.
    """
    figures, picture = folder / "agents.json", folder / "agents.png"
    figures.write_text(as_json_text(comparison) + "\n")
    picture.unlink(missing_ok=True)
    if plot.missing() is not None:
        return [figures]
    plot.draw(comparison, picture)
    return [figures, picture]
