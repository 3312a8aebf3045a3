"""The wheel, installed in an environment where our source tree is not."""

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from deploy.wheel import PACKAGES, TOP, with_prefix
from tests.processes import SCRIPTS

ROOT = Path(__file__).parent.parent.parent
WITH = {"nkeys": "nats-py", "pydantic_core": "pydantic", "transformers": "mlx-lm"}
"""Packages that come with a dependency, which promises them."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the commands of an environment that has our wheel, and what it needs from
    the environment of these tests. (A path in a `.pth` file is added without that folder's own
    `.pth` files, so the editable installation stays out.)"""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    packages = sysconfig.get_path("purelib", vars={"base": str(folder)})
    (Path(packages) / "needed.pth").write_text(sysconfig.get_path("purelib"))
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel],
        check=True,
    )
    return folder / "bin"


def run(environment: Path, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(environment), str(SCRIPTS), os.environ["PATH"]])
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [environment / command[0], *command[1:]],
        cwd=cwd, env={**variables, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_it_has_one_package_and_the_import_name_of_before(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        codes = {name: archive.read(name).decode() for name in names if name.startswith(f"{TOP}/")}
    assert {name for name in names if name not in codes} == {"shared/client/__init__.py"}
    for package in PACKAGES:
        there = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / package).rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }
        assert {f"{TOP}/{name}" for name in there} <= set(codes)
    bare = re.compile(rf"^\s*(from|import) ({'|'.join(PACKAGES)})\b", flags=re.MULTILINE)
    for name, code in codes.items():
        if name.endswith(".py"):
            ast.parse(code)
            assert bare.search(code) is None, name


@pytest.mark.timeout(200)
def test_a_cluster_answers_from_it_whatever_the_current_folder_holds(
    environment: Path, tmp_path: Path
) -> None:
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise RuntimeError('a program of others')")
    answer = run(
        environment, "cluster", "up", "--nats-port", "0", "--",
        "cluster", "run", "--json", "--temperature", "0", "--max-tokens", "8", "Hello",
        cwd=tmp_path,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout.splitlines()[-1])["text"]


def test_the_client_has_one_import_name_and_that_of_before_warns(
    environment: Path, tmp_path: Path
) -> None:
    code = "from mlx_nats_cluster import connect; import shared.client as before;"
    same = f"{code} import mlx_nats_cluster as now; assert before.connect is connect;"
    same += "assert set(now.__all__) <= set(dir(before))"
    told = run(environment, "python", "-c", same, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    refused = run(environment, "python", "-W", "error", "-c", code, cwd=tmp_path)
    assert "shared.client is now mlx_nats_cluster" in refused.stderr


def test_an_import_that_cannot_be_rewritten_is_refused() -> None:
    assert with_prefix("import shared.bus as bus\n") == f"import {TOP}.shared.bus as bus\n"
    assert with_prefix("from shared import bus\n") == f"from {TOP}.shared import bus\n"
    assert with_prefix("import sharedness\n") == "import sharedness\n"
    with pytest.raises(ValueError, match="without `as`"):
        with_prefix("import shared.bus\n")


OF_EXTRAS = {"matplotlib": "plot", "opentelemetry": "telemetry"}
"""Modules that are imported only where they are needed."""


@pytest.mark.parametrize(
    ("packages", "extras"),
    [
        (("shared", "controller"), ()),
        (("worker",), ("worker",)),
        (("shared/telemetry",), ("telemetry",)),
        (("shared/cli",), ("plot",)),
    ],
    ids=["clients and controllers", "workers", "traces", "plots"],
)
def test_what_is_imported_is_a_dependency(
    packages: tuple[str, ...], extras: tuple[str, ...]
) -> None:
    needed = [*PROJECT["dependencies"]]
    for extra in extras:
        needed += PROJECT["optional-dependencies"][extra]
    names = {normal(re.split(r"[\[<>=; ]", one)[0]) for one in needed}
    distributions = packages_distributions()
    for package in packages:
        others = {module for module, extra in OF_EXTRAS.items() if extra not in extras}
        for module in imported(ROOT / package) - others:
            brought_by = [WITH[module]] if module in WITH else distributions[module]
            assert names & {normal(one) for one in brought_by}, module


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(folder: Path) -> set[str]:
    """The top-level packages of others that modules of this folder import."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    found.update(alias.name.partition(".")[0] for alias in names)
                case ast.ImportFrom(module=str(module), level=0):
                    found.add(module.partition(".")[0])
    return found - sys.stdlib_module_names - {*PACKAGES, TOP}
