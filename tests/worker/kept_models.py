"""A keeper of models whose loader does not run: states change by hand, as it would change them."""

from typing import Any

from shared.change_notifier import ChangeNotifier
from shared.errors import ClusterError
from shared.ids import ModelId
from shared.settings import ClusterSettings
from tests.worker.recording_engine import RecordingEngine
from worker.memory.guard import MemoryGuard
from worker.models.lifecycle import ModelLifecycle
from worker.models.worker_models import WorkerModel

SMALL_BYTES, TOO_LARGE_BYTES = 1000, 10**15


class KeptModels:
    """Args:
    names: of models, each with a folder that nobody looks into.
    worker: keys of that section of the settings.
    """

    def __init__(self, *names: str, **worker: Any) -> None:
        self.settings = ClusterSettings.model_validate(
            {
                "skills": {"chat": list(names)},
                "models": {name: {"path": f"/models/{name}"} for name in names},
                "worker": worker,
            }
        )
        self.changes = ChangeNotifier()
        self.in_use: set[ModelId] = set()
        engines = [RecordingEngine()]
        self.keeper = ModelLifecycle(
            self.settings,
            engines,
            MemoryGuard(self.settings.worker.resource_limits, engines),
            self.changes,
            in_use=lambda: self.in_use,
            on_failed=self._on_failed,
        )
        for model in self.keeper.catalogue:
            model.size_bytes = SMALL_BYTES

    def __getitem__(self, name: str) -> WorkerModel:
        return self.keeper.catalogue[ModelId(name)]

    def of_state(self, state: str) -> list[str]:
        return [model.id for model in self.keeper.catalogue if model.state == state]

    def warm(self, *names: str) -> None:
        """They generated their first token."""
        for name in names:
            model = self[name]
            model.state, model.phase, model.progress, model.error = "warm", None, None, None
        self.changes.notify()

    def fail(self, name: str) -> None:
        model = self[name]
        model.state, model.phase, model.progress, model.error = "failed", None, None, "broken"
        self.changes.notify()

    def advance(self, name: str, progress: float) -> None:
        self[name].progress = progress
        self.changes.notify()

    @staticmethod
    def _on_failed(model: WorkerModel, error: ClusterError) -> None:
        raise AssertionError(f"the loader does not run, yet {model.id} failed: {error.message}")
