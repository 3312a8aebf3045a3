"""Benchmarks do not rot: each runs as its command, in its short form."""

import ast
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measures import RESULTS_VARIABLE
from tests.benchmarks.beside_others import BESIDE_OTHERS
from tests.benchmarks.short_forms import SHORT_FORMS

_ROOT = Path(__file__).parents[2]
_LIMIT_S = 240
_SHORTEST = {"step", "kv_bits", "kv_gather"}
"""Run with every `make test`: they use the engine's own classes, as other benchmarks do, and take
seconds."""


def benchmarks() -> set[str]:
    """The modules that save a result."""
    return {file.stem for file in (_ROOT / "benchmarks").glob("*.py") if _saves(file)}


def _saves(file: Path) -> bool:
    return any(
        alias.name == "save"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "benchmarks.measures"
        for alias in node.names
    )


def test_every_benchmark_has_a_short_form_and_a_line_in_the_documentation() -> None:
    assert set(SHORT_FORMS) == benchmarks()
    page = (_ROOT / "docs" / "benchmarks.md").read_text()
    lines = re.findall(r"^\| `make bench-([a-z-]+)` \|", page, re.MULTILINE)
    assert {line.replace("-", "_") for line in lines} | {"throughput"} == benchmarks()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in _SHORTEST else pytest.mark.long_form)
        for name in SHORT_FORMS
    ],
)
def test_a_benchmark_runs_and_saves_its_figures(
    name: str, demo_folder: Path, tmp_path: Path
) -> None:
    form = SHORT_FORMS[name]
    _run(name, form.arguments.split(), tmp_path)
    result = json.loads((tmp_path / f"{name}.json").read_text(), parse_constant=_refuse)
    for path in form.figures:
        figures = list(_at(result, path.split(".")))
        assert figures, f"{path}: nothing there"
        for figure in figures:
            assert isinstance(figure, float | int) and 0 < figure < math.inf, f"{path}: {figure}"


def _run(name: str, arguments: list[str], folder: Path) -> None:
    """Raises AssertionError, with what it said, when it does not end well within the limit."""
    environment = {
        **os.environ,
        **BESIDE_OTHERS,
        RESULTS_VARIABLE: str(folder),
    }
    log = folder / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{name}", *arguments],
            cwd=_ROOT, env=environment, stdout=output, stderr=output,
        )  # fmt: skip
        try:
            status = process.wait(_LIMIT_S)
        finally:
            process.terminate()
            process.wait()
    assert status == 0, log.read_text()


def _at(value: Any, path: list[str]) -> Iterator[Any]:
    """What stands at a path of keys; `*` is each key of a mapping, or each item of a list."""
    if not path:
        yield value
        return
    part, *rest = path
    if part == "*":
        found = list(value.values()) if isinstance(value, dict) else value
    else:
        found = [value[part]]
    for each in found:
        yield from _at(each, rest)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no figure")
