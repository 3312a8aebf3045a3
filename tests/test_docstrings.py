"""The names in docstrings are names in the code."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.test_glossary import PACKAGES, modules

_ENTRY = re.compile(r"^(\w+(?:, \w+)*): ")
_SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Yields")


def section(docstring: str | None, title: str) -> set[str]:
    """The names that a section of a docstring describes."""
    found: set[str] = set()
    inside, indent = False, 0
    for line in (docstring or "").splitlines():
        bare = line.strip()
        if bare.rstrip(":") in _SECTIONS and bare.endswith(":"):
            inside, indent = bare == f"{title}:", len(line) - len(bare) + 4
        elif inside and len(line) - len(bare) == indent and (entry := _ENTRY.match(bare)):
            found.update(entry[1].split(", "))
    return found


@cache
def classes() -> dict[str, ast.ClassDef]:
    return {
        node.name: node
        for package in PACKAGES
        for _, tree in modules(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def attributes(node: ast.ClassDef) -> set[str]:
    """The names that a class or its bases define, or assign to their instances."""
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
    found = {name for base in bases if base in classes() for name in attributes(classes()[base])}
    for one in ast.walk(node):
        match one:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found.add(one.name)
            case ast.Name(ctx=ast.Store()):
                found.add(one.id)
            case ast.Attribute(ctx=ast.Store()):
                found.add(one.attr)
    return found


def parameters(node: ast.AST) -> set[str]:
    if isinstance(node, ast.ClassDef):
        inits = [one for one in node.body if getattr(one, "name", "") == "__init__"]
        return parameters(inits[0]) if inits else attributes(node)
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    told = node.args
    rest = [one for one in (told.vararg, told.kwarg) if one is not None]
    return {one.arg for one in [*told.posonlyargs, *told.args, *told.kwonlyargs, *rest]}


def unknown(package: str) -> Iterator[str]:
    for path, tree in modules(package):
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            docstring = ast.get_docstring(node, clean=False)
            wrong = section(docstring, "Args") - parameters(node)
            if isinstance(node, ast.ClassDef):
                wrong |= section(docstring, "Attributes") - attributes(node)
            if wrong:
                yield f"{path}: {node.name}: {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_docstring_describes_is_there(package: str) -> None:
    assert list(unknown(package)) == []


def test_a_wrong_name_is_found() -> None:
    args = "    Args:\n        left: one.\n        right, up: two.\n\n"
    assert section(f"Do it.\n\n{args}    Returns:\n        x: y.", "Args") == {
        "left", "right", "up",
    }  # fmt: skip
