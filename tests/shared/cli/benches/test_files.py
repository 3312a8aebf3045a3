"""What a comparison leaves in a folder."""

import json
import sys
from pathlib import Path

import pytest

from shared.cli.benches.agents import as_json_text, save
from tests.shared.cli.benches.values import comparison


def test_figures_and_plot_are_written(tmp_path: Path) -> None:
    figures, picture = save(comparison(), tmp_path)
    assert json.loads(figures.read_text()) == json.loads(as_json_text(comparison()))
    assert picture.stat().st_size > 20_000


def test_without_the_plot_library_no_plot_of_an_earlier_run_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(comparison(), tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (figures,) = save(comparison(), tmp_path)
    assert list(tmp_path.iterdir()) == [figures]
