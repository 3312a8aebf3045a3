"""What `cluster bench agents` prints once it has measured."""

import json
from pathlib import Path

import pytest

from shared.cli.benches.agents import publish
from shared.errors import SettingsError
from tests.shared.cli.benches.values import comparison


def test_people_get_the_table_and_where_the_rest_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(comparison(), tmp_path, as_json=False)
    out, err = capsys.readouterr()
    assert "Answers equal: 8 of 8." in out and "\x1b" not in out
    assert f"Written: {tmp_path / 'agents.json'}, {tmp_path / 'agents.png'}" in out
    assert err == ""


def test_programs_get_json_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(comparison(), tmp_path, as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out)["equal_answers"] == 8
    assert err == ""


def test_figures_are_printed_even_where_they_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SettingsError, match="cannot write to"):
        publish(comparison(), tmp_path / "gone", as_json=True)
    assert json.loads(capsys.readouterr().out)["answers"] == 8
