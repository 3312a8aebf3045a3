"""Retired words of docs/glossary.md name nothing in the code, and no class name stands twice."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("shared", "controller", "worker")
CONTRACT = frozenset({
    "KeptPrefixes", "IneligibleWorker", "TellKept", "WaitingRoomSettings",
    "kept", "room", "taken", "waiting_room",
})  # fmt: skip
"""Names of messages in docs/wire.md and of settings, and their fields."""
WITH_CONTRACT = frozenset({"shared/messages", "shared/settings"})


def retired_words() -> list[str]:
    table = (ROOT / "docs" / "glossary.md").read_text().partition("## Retired words")[2]
    rows = re.findall(r"^\| ([a-z_, ]+) \|", table, flags=re.MULTILINE)
    return [word for row in rows if row != "retired" for word in row.split(", ")]


def modules(package: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        yield path.relative_to(ROOT), ast.parse(path.read_text())


@cache
def names() -> list[tuple[Path, str, list[str]]]:
    """Each name that a module defines, with its words."""
    return [
        (path, name, words_of(name))
        for package in PACKAGES
        for path, tree in modules(package)
        for name in {path.stem, *defined_names(tree)} - contract(path)
    ]


def contract(path: Path) -> frozenset[str]:
    """The names that a module may use because programs rely on them."""
    return CONTRACT if path.parent.as_posix() in WITH_CONTRACT else frozenset()


def words_of(name: str) -> list[str]:
    """`onPlaceTaken` and `on_place_taken`: on, place, taken."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def defined_names(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                found.add(node.name)
            case ast.arg():
                found.add(node.arg)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.Attribute(ctx=ast.Store()):
                found.add(node.attr)
    return found


@pytest.mark.parametrize("word", retired_words())
def test_a_retired_word_names_nothing(word: str) -> None:
    parts = word.split("_")
    for path, name, words in names():
        spans = [words[i : i + len(parts)] for i in range(len(words))]
        assert parts not in spans, f"{path}: {name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_two_public_classes_of_a_package_have_one_name(package: str) -> None:
    found: dict[str, list[Path]] = defaultdict(list)
    for path, tree in modules(package):
        if path.parts[:2] == ("controller", "gateway") and len(path.parts) > 3:
            continue  # each API has its own requests, messages and parts
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
