"""Stores the verdicts of probes across restarts, in one file for all engines of a machine.

A verdict is valid for the fingerprint of a model's files, a release of mlx-lm and a release of this
project. If any of these changes, the model is probed again.
"""

import json
import logging
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from worker.engine.batching_verdicts import BatchingVerdict

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
