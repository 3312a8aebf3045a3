"""Batching verdicts that ship with the project: whether rows of a model may be batched.

`make architectures` judges a small model of each module of mlx-lm and writes `verdicts.json`. A
verdict holds for a module, the cache classes of its layers, and a release of mlx-lm. Models without
a verdict are probed when they are loaded (`probe.py`).
"""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mlx_lm.models.cache import make_prompt_cache

from shared.messages.model_status import Batching
from worker.engine.caches import leaves

DATA = Path(__file__).with_name("verdicts.json")
_MODULES = "mlx_lm.models."
_OWN_MODULES = f"{__package__}."


@dataclass(frozen=True, slots=True)
class BatchingVerdict:
    """Whether rows decode `together`, or each `alone`.

    Attributes:
        reason: why rows decode alone.
        probe_s: the seconds that the probe took; None if the model was not probed.
    """

    batching: Batching
    reason: str | None = None
    probe_s: float | None = None


TOGETHER = BatchingVerdict("together")


def known_verdict(network: Any) -> BatchingVerdict | None:
    """Return the verdict that ships with the project for this network, or None."""
    module = _module_of(network)
    if module is None:
        return None
    return _verdicts().get(key(module, cache_kinds(network), version("mlx-lm")))


def key(module: str, caches: Sequence[str], release: str) -> str:
    """Return the key of a verdict in `verdicts.json`."""
    return f"{module}, {' and '.join(caches)}, mlx-lm {release}"


def cache_kinds(network: Any) -> list[str]:
    """Return the names of the mlx-lm cache classes of a network's layers."""
    return sorted({type(leaf).__name__ for leaf in leaves(make_prompt_cache(network))})


def _module_of(network: Any) -> str | None:
    """Return the module of `mlx_lm.models` that defines a network, ignoring subclasses made by this
    engine; None if the definition came with the model's files."""
    names = (kind.__module__ for kind in type(network).__mro__)
    name = next(name for name in names if not name.startswith(_OWN_MODULES))
    return name.removeprefix(_MODULES) if name.startswith(_MODULES) else None


def _verdicts() -> dict[str, BatchingVerdict]:
    if not DATA.exists():
        return {}
    found = json.loads(DATA.read_text())
    return {
        name: BatchingVerdict(each["batching"], each.get("reason")) for name, each in found.items()
    }


_log = logging.getLogger(__name__)

_MAX_VERDICTS = 256
"""The oldest verdicts are dropped from the file."""


class BatchingVerdictStore:
    """Verdicts by the `fingerprint` of models.

    Args:
        file: need not exist; None stores nothing.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def find(self, fingerprint: str) -> BatchingVerdict | None:
        """Return the verdict of a model, if any; an unreadable file counts as empty."""
        found = self._read().get(_key(fingerprint))
        try:
            return (
                BatchingVerdict(found["batching"], found["reason"]) if found is not None else None
            )
        except (KeyError, TypeError):
            return None

    def save(self, fingerprint: str, verdict: BatchingVerdict) -> None:
        """Save a verdict; if two engines save at the same time, one verdict may be lost."""
        if self._file is None:
            return
        verdicts = self._read()
        verdicts.pop(_key(fingerprint), None)
        verdicts[_key(fingerprint)] = {"batching": verdict.batching, "reason": verdict.reason}
        new = self._file.with_suffix(f".{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(dict(list(verdicts.items())[-_MAX_VERDICTS:]), indent=1))
            new.replace(self._file)
        except OSError as error:
            _log.warning("the batching verdict of a probe could not be stored: %s", error)

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._file.read_bytes()) if self._file is not None else {}
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _key(fingerprint: str) -> str:
    return f"{fingerprint} mlx-lm {version('mlx-lm')} {version('mlx-nats-cluster')}"
