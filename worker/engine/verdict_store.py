"""What probes found, kept over restarts in one file for all engines of a machine.

A verdict is kept of a model's files, as they are, for a release of mlx-lm and one of this project:
with another one it is probed anew.
"""

import json
import logging
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from worker.engine.batching_verdicts import BatchingVerdict

_log = logging.getLogger(__name__)

_MOST = 256
"""Verdicts in the file; the oldest go."""


class VerdictStore:
    """Verdicts by the `fingerprint` of models.

    Args:
        file: need not be there; None to keep nothing.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def find(self, fingerprint: str) -> BatchingVerdict | None:
        """A file that cannot be read holds nothing."""
        found = self._read().get(_key(fingerprint))
        try:
            return (
                BatchingVerdict(found["batching"], found["reason"]) if found is not None else None
            )
        except (KeyError, TypeError):
            return None

    def keep(self, fingerprint: str, verdict: BatchingVerdict) -> None:
        """Of two engines that do so at once the verdict of one may be lost."""
        if self._file is None:
            return
        kept = self._read()
        kept.pop(_key(fingerprint), None)
        kept[_key(fingerprint)] = {"batching": verdict.batching, "reason": verdict.reason}
        new = self._file.with_suffix(f".{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(dict(list(kept.items())[-_MOST:]), indent=1))
            new.replace(self._file)
        except OSError as error:
            _log.warning("what a probe found is not kept: %s", error)

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._file.read_bytes()) if self._file is not None else {}
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _key(fingerprint: str) -> str:
    return f"{fingerprint} mlx-lm {version('mlx-lm')} {version('mlx-nats-cluster')}"
