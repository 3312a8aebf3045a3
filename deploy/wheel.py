"""Puts `controller`, `shared` and `worker` into the package `mlx_nats_cluster` of a wheel.

Top-level packages of these names would collide with other people's. In the source tree, and in an
editable installation, they stay at the top. Here their files are copied, and each import of them
gets the prefix. `shared.client`, the import name of earlier versions, stays for one version as part
of a namespace package, which any other package `shared` overrides.
"""

import ast
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TOP = "mlx_nats_cluster"
PACKAGES = ("controller", "shared", "worker")
_BEFORE = '''"""The import name of earlier versions: use `mlx_nats_cluster`."""

import warnings

from mlx_nats_cluster.shared.client import *  # noqa: F403

warnings.warn(
    "shared.client is now mlx_nats_cluster: `from mlx_nats_cluster import connect`",
    DeprecationWarning,
    stacklevel=2,
)
'''


class WheelHook(BuildHookInterface):  # type: ignore[misc, type-arg]
    """Called by hatchling, see pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files to a wheel; nothing to an editable one."""
        if version == "editable":
            return
        self._folder = Path(tempfile.mkdtemp())
        fill(self._folder, Path(self.root))
        build_data["force_include"].update(
            {str(path): path.name for path in self._folder.iterdir()}
        )

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._folder)


def fill(target: Path, source: Path) -> None:
    """Write all files of a wheel into a folder.

    Raises:
        ValueError: a module imports one of ours in a form that cannot be rewritten.
    """
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(source / TOP, target / TOP, ignore=ignored)
    for package in PACKAGES:
        shutil.copytree(source / package, target / TOP / package, ignore=ignored)
    for module in (target / TOP).rglob("*.py"):
        module.write_text(with_prefix(module.read_text(encoding="utf-8")), encoding="utf-8")
    before = target / "shared" / "client" / "__init__.py"
    before.parent.mkdir(parents=True)
    before.write_text(_BEFORE)


def with_prefix(code: str) -> str:
    """The same module, which imports ours from within `mlx_nats_cluster`."""
    lines = code.split("\n")  # as the parser counts them
    for line, column in sorted(_names_of_ours(code), reverse=True):
        text = lines[line - 1].encode()
        lines[line - 1] = (text[:column] + f"{TOP}.".encode() + text[column:]).decode()
    return "\n".join(lines)


def _names_of_ours(code: str) -> Iterator[tuple[int, int]]:
    """Line and column, in bytes, of each module of ours in an import statement."""
    lines = code.split("\n")
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _is_ours(node.module or ""):
            found = re.compile(rb"from\s+").match(lines[node.lineno - 1].encode(), node.col_offset)
            if found is None:
                raise ValueError(f"line {node.lineno}: no module after `from`")
            yield node.lineno, found.end()
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _is_ours(alias.name):
                    if alias.asname is None:
                        raise ValueError(f"line {node.lineno}: import {alias.name} without `as`")
                    yield alias.lineno, alias.col_offset


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES
