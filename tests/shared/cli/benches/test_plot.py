"""The picture is there, and not empty; without the library it is told how to get it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shared.cli.benches import plot
from tests.shared.cli.benches.values import LOAD, comparison

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("restart", [True, False])
def test_a_picture_is_drawn(restart: bool, tmp_path: Path) -> None:
    path = tmp_path / "agents.png"
    plot.write_plot(comparison(replace(LOAD, restart=restart)), path)
    body = path.read_bytes()
    width, height = (int.from_bytes(body[start : start + 4]) for start in (16, 20))
    assert body.startswith(_SIGNATURE)
    assert width > 1000 and height > 500
    assert len(body) > 20_000


def test_where_the_library_is_missing_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert plot.missing() is None
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    hint = plot.missing()
    assert hint is not None and "pip install matplotlib" in hint


def test_commands_start_without_the_library() -> None:
    program = (
        "import sys, shared.cli.benches.agents, shared.cli.main; "
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
