"""The Homebrew formula is Ruby, and names what there is."""

import re
import tomllib
from pathlib import Path

import tree_sitter_ruby
from tree_sitter import Language, Node, Parser

ROOT = Path(__file__).parent.parent.parent
FORMULA = ROOT / "deploy" / "homebrew" / "mlx-nats-cluster.rb"


def parsed(code: str) -> Node:
    return Parser(Language(tree_sitter_ruby.language())).parse(code.encode()).root_node


def test_it_is_ruby() -> None:
    code = FORMULA.read_text()
    assert not parsed(code).has_error
    assert parsed(code.replace("post_install\n", "post_install(\n")).has_error


def test_it_installs_every_command_and_an_extra_that_there_is() -> None:
    code, project = FORMULA.read_text(), tomllib.loads((ROOT / "pyproject.toml").read_text())
    programs = re.search(r"%w\[(.*)\]", code)
    assert programs is not None
    assert set(programs[1].split()) == set(project["project"]["scripts"])
    (extra,) = re.findall(r"/source\[(\w+)\]", code)
    assert extra in project["project"]["optional-dependencies"]


def test_its_python_is_one_that_the_project_runs_on() -> None:
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    (version,) = set(re.findall(r"python@?(3\.\d+)", FORMULA.read_text()))
    assert tuple(map(int, version.split("."))) >= tuple(map(int, oldest[2:].split(".")))
