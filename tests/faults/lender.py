"""One running cluster for test after test: starting one costs as much as a round of faults."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.processes import ClusterProcess, cluster_process

_SETTINGS = {
    "CLUSTER__WORKER__ENGINES__MAX_RESTARTS": "1000",
    "CLUSTER__WORKER__ENGINES__RESTART_DELAY_MS": "200",
}


class ClusterLender:
    """Starts a new cluster after a test that failed, and for each test where `fresh`."""

    def __init__(self, model: Path, *, fresh: bool) -> None:
        self._model = model
        self._fresh = fresh
        self._running = contextlib.ExitStack()
        self._cluster: ClusterProcess | None = None

    @contextlib.contextmanager
    def lend(self) -> Iterator[ClusterProcess]:
        """A cluster of two workers."""
        if self._cluster is None:
            self._cluster = self._running.enter_context(
                cluster_process(workers=2, model=str(self._model), settings=_SETTINGS)
            )
        good = False
        try:
            yield self._cluster
            good = True
        finally:
            if self._fresh or not good:
                self.close()

    def close(self) -> None:
        self._cluster = None
        self._running.close()
